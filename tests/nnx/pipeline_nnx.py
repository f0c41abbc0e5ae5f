"""Train, shard, save, restore and sample an NNX model of this library's mixers and of layers of its own."""

import tempfile

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import based_jax as bj

WIDTH, VOCAB = 32, 64


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        kinds = [bj.mixers.make(kind, d_model=WIDTH) for kind in ("gla", "attention")]
        self.embed = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        self.mixers = nnx.List([bj.nnx.wrap(kind, rngs, jnp.zeros((1, 8, WIDTH))) for kind in kinds])
        columns = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, "fsdp"))
        self.mlps = nnx.List([nnx.Linear(WIDTH, WIDTH, kernel_init=columns, rngs=rngs) for _ in kinds])

    def __call__(self, tokens, states=(None, None)):
        x, after = self.embed(tokens), []
        for mixer, mlp, state in zip(self.mixers, self.mlps, states, strict=True):
            y, state = mixer(x, state)
            x, after = x + y + nnx.gelu(mlp(x + y)), [*after, state]
        return self.embed.attend(x), after


def loss(model, tokens):
    return optax.softmax_cross_entropy_with_integer_labels(model(tokens[:, :-1])[0], tokens[:, 1:]).mean()


@nnx.jit
def train_step(model, optimizer, tokens):
    value, grads = nnx.value_and_grad(loss)(model, tokens)
    optimizer.update(model, grads)
    return value


mesh = jax.make_mesh((2, 4), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)
text = (jnp.arange(17) + jnp.arange(8)[:, None]) % VOCAB
text = jax.device_put(text, NamedSharding(mesh, PartitionSpec(("data", "fsdp"))))
with jax.set_mesh(mesh), tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as files:
    model = nnx.jit(lambda: Model(nnx.Rngs(0)))()
    optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)
    print("losses", *(float(train_step(model, optimizer, text)) for _ in range(40)))
    files.save(f"{folder}/model", nnx.state(model))
    files.wait_until_finished()
    graph, state = nnx.get_abstract_model(lambda: Model(nnx.Rngs(0)), mesh)
    model = nnx.merge(graph, files.restore(f"{folder}/model", state))
    read, made = nnx.jit(lambda model, *inputs: model(*inputs)), text[:, :4]
    logits, states = read(model, made, [mixer.init_state(8, max_length=17) for mixer in model.mixers])
    while made.shape[1] < 17:
        made = jnp.concatenate([made, logits[:, -1:].argmax(-1)], axis=1)
        logits, states = read(model, made[:, -1:], states)
print("correct rows:", (made == text).all(1).sum(), model.mixers[0].params["q"]["kernel"].sharding)
