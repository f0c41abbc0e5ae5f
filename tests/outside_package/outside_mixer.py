"""minGRU (Feng et al. 2024, section 3.1), as docs/adding_a_mixer.md explains it."""

import jax
from flax import linen as nn

import based_jax as bj


class MinGRU(bj.mixers.Mixer):
    """h_t = (1 - z_t) h_{t-1} + z_t (x_t W_h),   z_t = sigmoid(x_t W_z)"""

    @nn.compact
    def mix(self, x, state, context):
        gate = self.linear(self.d_model, "embed", "mlp", bias=True, name="gate")(x)
        value = self.linear(self.d_model, "embed", "mlp", name="value")(x)

        def terms(tokens):
            z = jax.nn.sigmoid(tokens[0].astype(self.wide))
            return 1 - z, z * tokens[1]

        def read(h, tokens):
            return h.astype(self.dtype)

        h, state = context.run(bj.ops.diagonal_scan, (gate, value), terms, read, initial_state=state)
        return self.to_output("mlp", name="out")(h), state

    def empty_state(self, batch_size, max_length, dtype):
        return bj.ops.init_diagonal_scan_state(batch_size, (self.d_model,), self.wide)

    def state_size(self, length):
        return self.d_model
