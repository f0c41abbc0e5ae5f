"""Compare the paper's Table 3 with the mixers' operations, parameters and states.

``python -m papers.hyper_self_attention.hyper_lm.accounting`` prints the table of hyper_lm/README.md.

Operations are counted in the traced program (`based_jax.profile`), matrix products only, without the
projections' 2 P N for P parameters; their growth is the exponent between two lengths.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from based_jax import markdown, mixers
from based_jax.generate.states import row_bytes
from based_jax.profile import count_operations

WIDTH, HEADS = 64, 4
"""d and H of the counted layers; heads of 16 channels."""

LENGTHS = (256, 512)
"""N; operations and state are those of the last one."""


@dataclass(frozen=True)
class Form:
    """A row: a model of Table 3, and the mixer that implements it."""

    model: str
    captures: str  # in the paper's words
    exponent: int  # the paper's operations are Theta(L^exponent)
    mixer: str
    options: Mapping[str, Any] = field(default_factory=dict)


MUTUAL, COUPLED, WAYS = "mutual interactions", "couplings of mutual interactions", "n-way interactions"


def _linear(model: str, captures: str, mixer: str, **options: Any) -> Form:
    return Form(model, f"{captures} (approximate)", 1, f"linear_{mixer}", options)


FORMS = (
    Form("Self Attention", MUTUAL, 2, "attention"),
    Form("HyperFeatureAttention", COUPLED, 2, "hyper_feature_attention"),
    Form("", COUPLED, 2, "hyper_feature_attention", {"value_product": True}),
    Form("HyperAttention of order 3", WAYS, 3, "hyper_attention"),
    Form("", WAYS, 3, "hyper_attention", {"shared": False}),
    Form("of order 4", WAYS, 4, "hyper_attention", {"order": 4}),
    _linear("Linear Self Attention", MUTUAL, "attention"),
    _linear("Linear HyperFeatureAttention", COUPLED, "hyper_feature_attention"),
    _linear("Linear HyperAttention of order 3", WAYS, "hyper_attention"),
    _linear("of order 4", WAYS, "hyper_attention", order=4),
)


@dataclass(frozen=True)
class Account:
    """Measurements of a form's mixer, at `WIDTH` and the last of `LENGTHS`."""

    operations: float  # of matrix products, without projections
    growth: float  # exponent of N in the operations
    parameters: int
    state: int  # floats per sequence, by `state_size`
    held: int  # bytes of `init_state`, per sequence


def account(form: Form) -> Account:
    """Count by tracing, without running."""
    mixer = mixers.make(form.mixer, d_model=WIDTH, num_heads=HEADS, **form.options)
    params = jax.eval_shape(mixer.init, jax.random.key(0), _input(1))
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
    fewer, more = (
        count_operations(lambda params, x: mixer.apply(params, x), params, _input(length)).products
        - 2 * count * length
        for length in LENGTHS
    )
    growth = math.log(more / fewer, LENGTHS[1] / LENGTHS[0])
    state = jax.eval_shape(lambda: mixer.init_state(1, LENGTHS[1]))
    return Account(more, growth, count, mixer.state_size(LENGTHS[1]), row_bytes(state))


def table(accounts: Sequence[Account]) -> str:
    """Return the rows of `FORMS` as Markdown, from their accounts in this order."""
    head = ["model", "captures", "paper: operations", "parameters", "our mixer"]
    numbers = ["operations, SA = 1", "growth", "parameters", "state, floats", "held, bytes"]
    rows = []
    for form, ours in zip(FORMS, accounts, strict=True):
        options = "".join(f", `{name}={value}`" for name, value in form.options.items())
        theta = "Θ(L)" if form.exponent == 1 else f"Θ(L^{form.exponent})"
        times = ours.operations / accounts[0].operations
        theirs = [form.model, form.captures, theta, "Θ(d^2)", f"`{form.mixer}`{options}"]
        operations = f"{times:,.0f}" if times >= 100 else f"{times:.3g}"
        squares = f"{ours.parameters / WIDTH**2:.3g} d^2"
        rows.append(
            [*theirs, operations, f"N^{ours.growth:.2f}", squares, f"{ours.state:,}", f"{ours.held:,}"]
        )
    return "\n".join(markdown.table([*head, *numbers], rows, words=range(len(head))))


def _input(length: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((1, length, WIDTH), jnp.float32)


if __name__ == "__main__":
    print(table([account(form) for form in FORMS]))
