"""The profile of a training step: kinds of operations, parts of the model, no time counted twice."""

import collections

import jax
import jax.numpy as jnp
import pytest

from benchmarks.models import hlo_kinds, train_profile


def test_operations_of_a_compiled_program_have_their_kinds_and_paths():
    def f(x, w):
        with jax.named_scope("layers_0/mixer/q"):
            y = x @ w
        return jnp.exp(y).sum(), x.T.copy()

    text = jax.jit(f).lower(jnp.ones((64, 32)), jnp.ones((32, 16))).compile().as_text()
    found = hlo_kinds.operations(text)
    kinds = collections.Counter(operation.kind for operation in found.values())
    assert kinds["products"] == 1
    assert kinds["exponentials"] >= 1
    (product,) = (operation for operation in found.values() if operation.kind == "products")
    assert "layers_0/mixer/q" in product.name
    assert product.is_split


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("jit(step)/jvp(LanguageModel)/layers_1/mixer/q/dot_general", ("based: projections", "forward")),
        ("jit(step)/transpose(jvp(LanguageModel))/layers_0/mlp/in/mul", ("mlp", "backward")),
        ("jit(step)/jvp(LanguageModel)/layers_0/norm_1/mul", ("norms", "forward")),
        ("jit(step)/transpose(jvp())/cross_entropy/dot_general", ("cross_entropy", "backward")),
        ("jit(step)/optimizer/add", ("optimizer", "update")),
        ("", ("rest", "update")),
    ],
)
def test_a_path_names_a_part_and_a_direction(path, expected):
    assert train_profile.part_of(path, ["window", "based"]) == expected


def test_time_of_operations_inside_another_counts_once():
    totals = collections.defaultdict(float)
    train_profile._add_own_time(totals, [(0, -10, "loop"), (1, -3, "dot"), (5, -2, "exp"), (20, -4, "dot")])
    assert totals == {"loop": 5, "dot": 7, "exp": 2}
