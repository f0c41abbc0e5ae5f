"""Count a model's costs, layer by layer: ``based-jax profile --preset NAME --length N``."""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from based_jax import command, mixers
from based_jax.models import LanguageModel, ModelConfig, param_count, presets
from based_jax.models.language_model import make_mixer, param_shapes
from based_jax.phases import phase
from based_jax.profile.operations import Operations, count_operations, training_operations
from based_jax.published.tables import printed_tflops, training_flops
from based_jax.validate import expect_ranges

PROG = "based-jax profile"


@dataclasses.dataclass(frozen=True)
class Options:
    """Count the parameters, floating-point operations and state of a preset, without running it."""

    preset: str = "based-360m"
    """one of based_jax.presets.names(), or a JSON file"""
    length: int = 2048
    """number of tokens of a sequence"""

    def __post_init__(self) -> None:
        expect_ranges(self, 1, "length")


class Block(NamedTuple):
    """What one block costs."""

    mixer: str
    parameters: int
    mixer_parameters: int
    mixer_forward: float  # operations
    state_floats: int | None  # by the papers' formulas; None without a state
    state_bytes: int | None


class Profile(NamedTuple):
    """What a model costs on one sequence."""

    forward: Operations
    training: Operations
    published: float | None  # operations of training by the papers' formulas
    blocks: list[Block]


def profile(config: ModelConfig, length: int) -> Profile:
    """Count by tracing; nothing is allocated or run.

    Raises:
        ValueError: a length beyond the model's learned positions or long filters.
    """
    model, params = LanguageModel(config), {"params": dict(param_shapes(config))}
    tokens = jax.ShapeDtypeStruct((1, length), jnp.int32)
    forward = count_operations(lambda params, tokens: model.apply(params, tokens)[0], params, tokens)
    training = training_operations(config, length)
    blocks = [_block(config, params["params"], index, length) for index in range(config.num_layers)]
    return Profile(forward, training, training_flops(config, length), blocks)


def _block(config: ModelConfig, params: Any, index: int, length: int) -> Block:
    tree = params[f"layers_{index}"]
    mixer, spec = make_mixer(config, index), config.layer(index)
    x = jax.ShapeDtypeStruct((1, length, config.d_model), jnp.dtype(config.dtype))
    extra: dict[str, Any] = {"tokens": jnp.zeros((1, length), jnp.int32)} if mixer.wants_tokens else {}
    variables = {"params": tree["mixer"]}
    operations = count_operations(lambda params, x: mixer.apply(params, x, **extra), variables, x)
    floats, size = None, None
    if mixers.info(spec.mixer).stateful:
        floats = mixer.state_size(length)
        state = jax.eval_shape(lambda: mixer.init_state(1, length))
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    whole, own = (sum(leaf.size for leaf in jax.tree.leaves(part)) for part in (tree, tree["mixer"]))
    return Block(spec.mixer, whole, own, operations.total, floats, size)


def _show(options: Options, config: ModelConfig, found: Profile) -> None:
    console = Console(highlight=False, soft_wrap=True)
    table = Table("layers", "mixer", box=None, pad_edge=False)
    table.columns[1].no_wrap = True
    for head in ("parameters", "of the mixer", "GFLOPs forward", "state, floats", "state, bytes"):
        table.add_column(head, justify="right", min_width=11)
    for (mixer, whole, own, flops, floats, size), count in Counter(found.blocks).items():
        counted = f"{flops / 1e9:,.3f}"
        table.add_row(str(count), mixer, f"{whole:,}", f"{own:,}", counted, _cell([floats]), _cell([size]))
    console.print(table)

    def line(label: str, text: str) -> None:
        console.print(f"{label:19} {text}")

    console.print()
    line("parameters", f"{param_count(config):,}, embeddings counted once")
    for label, counted in (("forward", found.forward), ("forward, backward", found.training)):
        parts = (part / 1e12 for part in (counted.products, counted.transforms, counted.rest))
        named = "products {:.4f}, Fourier transforms {:.4f}, the rest {:.4f}".format(*parts)
        line(label, f"{counted.total / 1e12:.4f} TFLOPs on 1 x {options.length:,} tokens: {named}")
        if unknown := counted.unknown_loops:
            line("", f"bodies of {unknown} loops of unknown length taken once")
    formula = found.published
    said = "no formula for these layers" if formula is None else f"{formula / 1e12:.3f} TFLOPs"
    if (printed := printed_tflops().get(options.preset)) is not None:
        said += f"; printed: {printed:.2f} at 2,048 tokens"
    line("by the papers", said)
    floats = _cell([block.state_floats for block in found.blocks])
    size = _cell([block.state_bytes for block in found.blocks])
    line("state", f"{floats} floats per sequence by the papers' formulas; {size} bytes allocated")


def _cell(values: Sequence[int | None]) -> str:
    """Format the sum, or "none" if one of the values is None."""
    known = [value for value in values if value is not None]
    return f"{sum(known):,}" if len(known) == len(values) else "none"


def main(argv: Sequence[str] | None = None) -> None:
    options = command.parse(Options, argv, prog=PROG)
    config = presets.find(options.preset)
    with phase("tracing the model and its training step", patience=math.inf):
        found = profile(config, options.length)
    _show(options, config, found)


if __name__ == "__main__":
    command.run(PROG, main)
