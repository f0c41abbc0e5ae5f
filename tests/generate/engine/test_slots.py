"""Rows of a pool come, go and move without a trace in the others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax.generate import Request
from based_jax.generate.engine.slots import Slots
from based_jax.generate.pool import read
from based_jax.generate.states import put_rows
from tests.generate.tiny import LENGTH, Tiny

PROMPTS = {"a": [7, 2], "b": [3, 1, 4], "c": [4, 4, 9, 0], "d": [11], "e": [5, 5]}


def put(slots: Slots[str], case: Tiny, name: str, **options) -> None:
    """Give `name` a row after its prompt."""
    prompt = PROMPTS[name]
    tokens = np.array([prompt + [0] * (8 - len(prompt))], np.int32)
    text, _ = read(case.model, case.params, slots.fresh, tokens, np.int32(len(prompt)))
    slots.insert(name, Request(prompt, **options), text)


def made_by(slots: Slots[str]) -> dict[str, list[int]]:
    """The next 4 tokens of each."""
    owners, made = slots.decode(4)
    tokens, count = np.asarray(made.choice.token), np.asarray(made.count)
    return {
        owner: tokens[slot, : count[slot]].tolist() for slot, owner in enumerate(owners) if owner is not None
    }


def test_rows_with_keys_are_put_without_jit():
    rows = {"key": jax.random.split(jax.random.key(0), 3), "size": np.zeros(3, np.int32)}
    new = {"key": jax.random.split(jax.random.key(1), 1), "size": np.ones(1, np.int8)}
    found = put_rows(jax.tree.map(jnp.asarray, rows), jax.tree.map(jnp.asarray, new), jnp.array([1]))
    assert found["size"].tolist() == [0, 1, 0]
    assert found["key"][1] == new["key"][0]


def test_owners_and_rows_move_alike(wide, x64):
    """Rows are known by their limits, so nothing is decoded."""
    slots = Slots(wide.model, wide.params, most=4, capacity=LENGTH)
    limits = {name: 10 + number for number, name in enumerate("abcde")}
    sizes = []
    for name in "abcAeCB":
        if name.islower():
            put(slots, wide, name, max_new_tokens=limits[name])
        else:
            slots.remove(name.lower(), ended=False)
            slots.shrink()
        sizes.append(len(slots.owners))
        rows = [None if owner is None else limits[owner] for owner in slots.owners]
        limit, active = np.asarray(slots._pool.limit), np.asarray(slots._pool.active)
        assert rows == [limit[slot] if active[slot] else None for slot in range(len(rows))]
    assert sizes == [1, 2, 4, 2, 4, 2, 1]
    assert slots.running == ["e"]


@pytest.mark.slow
def test_whatever_becomes_of_free_rows(wide, x64):
    """They are decoded as the others are, beyond their capacity too; NaN is the worst that they can hold."""
    slots = Slots(wide.model, wide.params, most=2, capacity=LENGTH)
    put(slots, wide, "a", max_new_tokens=30)
    put(slots, wide, "b", max_new_tokens=30)
    tokens = made_by(slots)["a"]
    slots.remove("b", ended=False)

    def spoiled(leaf):
        return leaf.at[1].set(np.nan) if np.issubdtype(leaf.dtype, np.floating) else leaf

    text = slots._pool.text
    slots._pool = slots._pool._replace(text=text._replace(state=jax.tree.map(spoiled, text.state)))
    tokens += made_by(slots)["a"]
    assert tokens == wide.greedy(PROMPTS["a"], len(tokens))
    put(slots, wide, "c", max_new_tokens=30)  # in b's row
    made = made_by(slots)["c"]
    assert made == wide.greedy(PROMPTS["c"], len(made))
