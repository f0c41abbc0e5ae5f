"""A residual block: a sequence mixer, then an MLP, each after a norm.

    residual = residual + h;  residual = residual + mixer(norm1(residual));  h = mlp(norm2(residual))

or, without an MLP (Mamba, RWKV), residual = residual + h;  h = mixer(norm1(residual)).
The residual stream is carried beside the branch output h and stays in float32: with a bfloat16 model the
sum over dozens of layers would otherwise lose the small contributions.
"""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from based_jax.mixers.contract import Mixer
from based_jax.models.mlp import MLP, IdentityMLP
from based_jax.models.norm import make_norm
from based_jax.ops.core.context_parallel import keep_tokens
from based_jax.ops.core.dtypes import accumulation_dtype
from based_jax.typing import Array, Float, State


class Block(nn.Module):
    """Pre-norm block around any mixer and MLP.

    Attributes:
        mixer: an unbound mixer.
        mlp: an unbound MLP; None for a block of one norm and a mixer.
        norm: "rms" or "layer".
        norm_eps: epsilon of the norms.
        dtype: dtype in which mixer and MLP see the stream.
        prenorm: False gives the authors' post-norm block, h = norm2(mlp(a) + a), a = norm1(mixer(h) + h),
            which carries no residual.
    """

    mixer: Mixer
    mlp: MLP | IdentityMLP | None
    norm: str = "rms"
    norm_eps: float = 1e-5
    dtype: Any = jnp.float32
    prenorm: bool = True

    def setup(self) -> None:
        self.norm1 = make_norm(self.norm, self.norm_eps, self.dtype)
        if self.mlp is not None:
            self.norm2 = make_norm(self.norm, self.norm_eps, self.dtype)

    def __call__(
        self,
        h: Float[Array, "B N D"],
        residual: Float[Array, "B N D"] | None = None,
        state: State | None = None,
        **context: Any,
    ) -> tuple[Float[Array, "B N D"], Float[Array, "B N D"] | None, State | None]:
        """Run the block.

        Args:
            h: output of the previous block (or the embedding).
            residual: the stream before h was added; None for the first block.
            context: further arguments of the mixer.

        Returns:
            h: (B, N, D), not yet added to the stream; the float32 residual stream; the mixer's state.
        """
        if not self.prenorm:
            if self.mlp is None:
                raise ValueError("mlp = None: expected an MLP in a post-norm block")
            mixed, state = self.mixer(h, state, **context)
            h = self.norm1(mixed + h)
            return self.norm2(self.mlp(h) + h), None, state
        wide = accumulation_dtype(h)
        residual = keep_tokens(h.astype(wide) if residual is None else residual + h.astype(wide))
        if state is not None and h.shape[1] == 1:
            # A norm is a number where the stream is, whose search is one kernel with the sum before it.
            context["are_numbers"] = jnp.isfinite(residual).all(axis=-1)
        mixed, state = self.mixer(self.norm1(residual), state, **context)
        if self.mlp is None:
            return mixed, residual, state
        residual = keep_tokens(residual + mixed.astype(wide))
        return self.mlp(self.norm2(residual)), residual, state
