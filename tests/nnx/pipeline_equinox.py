"""Train, shard, save, restore and sample an Equinox model of this library's mixers and layers of its own."""

import tempfile

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import based_jax as bj

WIDTH, VOCAB, cross_entropy = 32, 64, optax.softmax_cross_entropy_with_integer_labels
MIXERS = [bj.mixers.make(kind, d_model=WIDTH) for kind in ("gla", "attention")]


class Model(eqx.Module):
    embed: eqx.nn.Embedding
    mixers: list[dict]
    mlps: list[eqx.nn.Linear]

    def __init__(self, key):
        keys, example = jax.random.split(key, 5), jnp.zeros((1, 8, WIDTH))
        self.embed = eqx.nn.Embedding(VOCAB, WIDTH, key=keys[0])
        self.mixers = [bj.functional(m).init(k, example) for m, k in zip(MIXERS, keys[1:3], strict=True)]
        self.mlps = [eqx.nn.Linear(WIDTH, WIDTH, key=key) for key in keys[3:]]

    def __call__(self, tokens, states=(None, None)):
        x, after = self.embed.weight[tokens], []
        for mixer, params, mlp, state in zip(MIXERS, self.mixers, self.mlps, states, strict=True):
            y, state = mixer.apply(params, x, state)
            x, after = x + y + jax.nn.gelu(jax.vmap(jax.vmap(mlp))(x + y)), [*after, state]
        return x @ self.embed.weight.T / WIDTH**0.5, after


@jax.jit
def train_step(model, moments, text):
    value, grads = jax.value_and_grad(lambda m: cross_entropy(m(text[:, :-1])[0], text[:, 1:]).mean())(model)
    updates, moments = optimizer.update(grads, moments, model)
    return eqx.apply_updates(model, updates), moments, value


mesh, optimizer = jax.make_mesh((8,), ("fsdp",), axis_types=(AxisType.Auto,)), optax.adamw(1e-2)
cut, whole = (NamedSharding(mesh, PartitionSpec(axis)) for axis in ("fsdp", None))
text = jax.device_put((jnp.arange(17) + jnp.arange(8)[:, None]) % VOCAB, cut)
model = jax.tree.map(lambda x: jax.device_put(x, whole if x.shape[0] % 8 else cut), Model(jax.random.key(0)))
moments = optimizer.init(model)
for _ in range(40):
    model, moments, value = train_step(model, moments, text)
leaves, structure = jax.tree.flatten(model)
with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as files:
    files.save(f"{folder}/model", leaves)
    files.wait_until_finished()
    model = jax.tree.unflatten(structure, files.restore(f"{folder}/model", leaves))
made, states = text[:, :4], [mixer.init_state(8, max_length=17) for mixer in MIXERS]
while made.shape[1] < 17:
    logits, states = eqx.filter_jit(model)(made if made.shape[1] == 4 else made[:, -1:], states)
    made = jnp.concatenate([made, logits[:, -1:].argmax(-1)], axis=1)
print("loss", value, "correct rows:", (made == text).all(1).sum(), model.embed.weight.sharding)
