"""Count a model's costs, layer by layer: ``based-jax profile --preset NAME --length N``."""

import dataclasses
import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from based_jax import command, mixers
from based_jax.models import LanguageModel, ModelConfig, param_count, presets
from based_jax.models.language_model import make_mixer, param_shapes
from based_jax.phases import phase
from based_jax.profile.operations import count_operations, training_operations
from based_jax.published.flops import printed_tflops, training_flops
from based_jax.validate import expect_ranges

PROG = "based-jax profile"


@dataclasses.dataclass(frozen=True)
class Options:
    """Count the parameters, floating-point operations and state of a preset, without running it."""

    preset: str = "based-360m"
    """one of based_jax.presets.names()"""
    length: int = 2048
    """number of tokens of a sequence"""
    batch_size: int = 1
    """number of sequences"""
    json: Path | None = None
    """JSON file for every number"""

    def __post_init__(self) -> None:
        expect_ranges(self, 1, "length", "batch_size")


def profile(config: ModelConfig, length: int, batch_size: int = 1) -> dict[str, Any]:
    """Return every number of the report; nothing is allocated or run.

    Raises:
        ValueError: a length beyond the model's learned positions or long filters.
    """
    model = LanguageModel(config)
    tokens = jax.ShapeDtypeStruct((batch_size, length), jnp.int32)
    params = {"params": dict(param_shapes(config))}
    forward = count_operations(lambda params, tokens: model.apply(params, tokens)[0], params, tokens)
    training = training_operations(config, length, batch_size)
    published = training_flops(config, length)
    tree = params["params"]
    layers = [_layer(config, tree, index, length, batch_size) for index in range(config.num_layers)]
    return {
        "length": length,
        "batch_size": batch_size,
        "parameters": param_count(config),
        "forward": {**dataclasses.asdict(forward), "total": forward.total},
        "training": {**dataclasses.asdict(training), "total": training.total},
        "training_by_the_papers": published and published * batch_size,
        "state_floats_by_the_papers": _sum(layer["state_floats_by_the_papers"] for layer in layers),
        "state_bytes": _sum(layer["state_bytes"] for layer in layers),
        "layers": layers,
    }


def _layer(config: ModelConfig, params: Any, index: int, length: int, batch_size: int) -> dict[str, Any]:
    """Measure one block: its parameters, its mixer's forward operations, and its state."""
    tree = params[f"layers_{index}"]
    mixer, spec = make_mixer(config, index), config.layer(index)
    x = jax.ShapeDtypeStruct((batch_size, length, config.d_model), jnp.dtype(config.dtype))
    tokens = jnp.zeros((batch_size, length), jnp.int32)
    extra: dict[str, Any] = {"tokens": tokens} if mixer.wants_tokens else {}
    variables = {"params": tree["mixer"]}
    operations = count_operations(lambda params, x: mixer.apply(params, x, **extra), variables, x)
    floats, size = None, None
    if mixers.info(spec.mixer).stateful:
        floats = mixer.state_size(length)
        state = jax.eval_shape(lambda: mixer.init_state(batch_size, length))
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    return {
        "mixer": spec.mixer,
        "parameters": _size(tree),
        "mixer_parameters": _size(tree["mixer"]),
        "mixer_forward": operations.total,
        "state_floats_by_the_papers": floats,
        "state_bytes": size,
    }


def _size(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _sum(values: Any) -> int | None:
    """Return the sum, or None if one of the values is None."""
    values = list(values)
    return None if None in values else sum(values)


def _show(name: str, numbers: dict[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    table = Table("layers", "mixer", box=None, pad_edge=False)
    table.columns[1].no_wrap = True
    for head in ("parameters", "of the mixer", "GFLOPs forward", "state, floats", "state, bytes"):
        table.add_column(head, justify="right", min_width=11)
    kinds = Counter(tuple(layer.values()) for layer in numbers["layers"])
    for (mixer, whole, own, flops, floats, size), count in kinds.items():
        counted = f"{flops / 1e9:,.3f}"
        table.add_row(str(count), mixer, _cell(whole), _cell(own), counted, _cell(floats), _cell(size))
    console.print(table)

    def line(label: str, text: str) -> None:
        console.print(f"{label:19} {text}")

    console.print()
    line("parameters", f"{numbers['parameters']:,}, embeddings counted once")
    rows = f"{numbers['batch_size']} x {numbers['length']:,} tokens"
    for kind, label in (("forward", "forward"), ("training", "forward, backward")):
        total, *parts = (numbers[kind][part] / 1e12 for part in ("total", "products", "transforms", "rest"))
        named = "products {:.4f}, Fourier transforms {:.4f}, the rest {:.4f}".format(*parts)
        line(label, f"{total:.4f} TFLOPs on {rows}: {named}")
        if unknown := numbers[kind]["unknown_loops"]:
            line("", f"bodies of {unknown} loops of unknown length taken once")
    formula = numbers["training_by_the_papers"]
    said = "no formula for these layers" if formula is None else f"{formula / 1e12:.3f} TFLOPs"
    if (printed := printed_tflops().get(name)) is not None:
        said += f"; printed: {printed:.2f} at 2,048 tokens"
    line("by the papers", said)
    floats, size = _cell(numbers["state_floats_by_the_papers"]), _cell(numbers["state_bytes"])
    line("state", f"{floats} floats per sequence by the papers' formulas; {size} bytes allocated")


def _cell(value: int | None) -> str:
    return "none" if value is None else f"{value:,}"


def main(argv: Sequence[str] | None = None) -> None:
    options = command.parse(Options, argv, prog=PROG)
    config = presets.get(options.preset)
    with phase("tracing the model and its training step", patience=math.inf):
        numbers = profile(config, options.length, options.batch_size)
    _show(options.preset, numbers)
    if options.json:
        options.json.write_text(json.dumps({"preset": options.preset, **numbers}, indent=1) + "\n")


if __name__ == "__main__":
    command.run(PROG, lambda: main(sys.argv[1:]))
