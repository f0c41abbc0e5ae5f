"""List the compared models, which differ only in their mixer, with the perplexities of the paper's tables."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from based_jax.models import ModelConfig
from based_jax.models.config import MixerSpec

BASELINE = "SA"
"""The family that the others are compared with."""


@dataclass(frozen=True)
class Contender:
    """A model of one of the paper's tables, or another reading of its row."""

    key: str  # name of its files
    family: str  # its line in the figure
    mixer: str
    options: Any  # of the mixer
    order: str  # in the paper's words; - if the table has no such row
    perplexity: float | None  # the paper's; None if the table has no such row
    times: float = 1.0  # multiple of the default scale of each factor's scores


@dataclass(frozen=True)
class Benchmark:
    """One of the paper's tables."""

    name: str
    source: str
    layers: int
    contenders: Sequence[Contender]
    linear: Sequence[Contender]  # mixers with a state of constant size, which no table has


def _attention(key: str, heads: int, order: str, perplexity: float) -> Contender:
    options = {"num_heads": heads, "rotary_fraction": 0.0}
    return Contender(key, BASELINE, "attention", options, order, perplexity)


def _features(
    key: str, family: str, heads: int, orders: int | tuple[int, ...], order: str, perplexity: float | None
) -> Contender:
    options = {"num_heads": heads, "orders": orders, "rotary_fraction": 0.0}
    return Contender(key, family, "hyper_feature_attention", options, order, perplexity)


def _tuples(key: str, family: str, shared: bool, perplexity: float) -> Contender:
    options = {"num_heads": 1, "order": 3, "shared": shared}
    return Contender(key, family, "hyper_attention", options, "3", perplexity)


def _linear(key: str, family: str, mixer: str, heads: int, **options: Any) -> Contender:
    return Contender(key, family, mixer, {"num_heads": heads, **options}, "-", None)


_TABLE_1 = (
    _attention("a-sa", 1, "-", 62.28),
    _features("a-hfa-2", "HFA A=2", 1, 2, "-", None),
    _features("a-hfa-3", "HFA A=3", 1, 3, "4", 60.22),
    _features("a-hfa-4", "HFA A=4", 1, 4, "4", 60.22),
    _tuples("a-ha", "HA", True, 51.26),
    _tuples("a-ha-unshared", "HA unshared", False, 48.50),
)
_TABLE_2 = (
    _attention("b-sa", 3, "2", 28.70),
    _features("b-hfa", "HFA A=2", 3, 2, "3", 27.97),
    _features("b-hfa-v2", "HFAv2", 4, (1, 1, 2, 2), "2 and 3", 27.75),
)
_LINEAR_1 = (
    _linear("a-la", "Linear SA", "linear_attention", 1),
    _linear("a-lhfa", "Linear HFA A=2", "linear_hyper_feature_attention", 1, order=2),
    _linear("a-lha", "Linear HA", "linear_hyper_attention", 1, order=3),
)
_LINEAR_2 = (_linear("b-la", "Linear SA", "linear_attention", 3),)
BENCHMARKS = (
    Benchmark("A", "Table 1", 1, _TABLE_1, _LINEAR_1),
    Benchmark("B", "Table 2", 3, _TABLE_2, _LINEAR_2),
)
"""Table 1 has one row of HFA, of "order 4". Table 2 calls ordinary attention "order 2", so order 4 is A = 3;
by the paper's definition, where ordinary attention has A = 1, it is A = 4. Both are listed, and A = 2, the
one that Table 2 has by the first reading; by the second, its A = 3 would not divide a head's 256 channels.
Linear SA is Based's linear attention, with Taylor's map of 16 channels."""


def swept(benchmark: Benchmark, times: Sequence[float]) -> list[Contender]:
    """Return SA and HFA with each multiple of the default scale of a factor's scores.

    The paper prints no scale. SA has one factor, and is swept like the others.
    """
    mixers = ("attention", "hyper_feature_attention")
    return [
        replace(one, key=f"{one.key}-x{many:g}", family=f"{one.family} x{many:g}", times=many)
        for one in benchmark.contenders
        if one.mixer in mixers
        for many in times
    ]


def model(
    benchmark: Benchmark, contender: Contender, d_model: int, length: int, vocab_size: int
) -> ModelConfig:
    """Return the model of a contender, in the shape of GPT-3, for windows of `length` tokens.

    Learned positions, LayerNorms, an MLP four times as wide with GELU, a tied head, no biases in the mixers.
    """
    options = dict(contender.options)
    if contender.times != 1:
        channels = d_model // options["num_heads"] // options.get("orders", 1)
        options["scale"] = contender.times * channels**-0.5
    mixers = {"M": MixerSpec(contender.mixer, options)}
    how: dict[str, Any] = {"mlp": "plain", "mlp_activation": "gelu", "mlp_bias": True, "norm": "layer"}
    how |= {"max_positions": length, "max_length": length}
    return ModelConfig(vocab_size, d_model, "M" * benchmark.layers, mixers, 4 * d_model, **how)
