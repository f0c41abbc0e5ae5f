"""The grid on several devices: vmapped runs are spread over them; their numbers are those of one device."""

from collections.abc import Sequence
from unittest import mock

import jax
import numpy as np
import pytest

from based_jax.models import LanguageModel, mqar_backbone
from based_jax.training.mqar.grid import Batches, Grid, GridState, VmappedRuns
from tests.subprocesses import run_python

RUNS = [(rate, seed) for seed in (0, 1) for rate in (1e-3, 3e-3, 1e-2, 3e-2)]


@pytest.mark.slow
def test_four_devices_give_the_numbers_of_one():
    run_python("from tests.training.test_mqar_devices import compare; compare()", devices=4)


def compare() -> None:
    """Eight runs, two on each of four devices; and six, which are filled up with two copies."""
    several = small_grid(devices=4)
    with mock.patch("jax.device_count", return_value=1):
        alone = small_grid(devices=1)
    expected = numbers(alone, range(8))
    for vmapped in (range(8), range(6)):
        for ours, theirs in zip(numbers(several, vmapped), expected, strict=True):
            assert len(ours) == 8
            # Not bitwise: a device's arrays have other shapes, whose sums may be taken in another order.
            np.testing.assert_allclose(ours[: len(vmapped)], theirs[: len(vmapped)], rtol=1e-5)
            assert np.all(ours[len(vmapped) :] == ours[len(vmapped) - 1])


def small_grid(devices: int) -> Grid:
    """Of a model that draws noise: dropout."""
    config = mqar_backbone(None, 4, vocab_size=16, layers=["short_conv"], dropout=0.1)
    grid = Grid(LanguageModel(config), 8, weight_decay=0.1)
    assert grid.mesh.size == devices
    return grid


def numbers(grid: Grid, runs: Sequence[int]) -> list[np.ndarray]:
    """Each run's loss (R,) over three steps, and sums (R, 2) of a test."""
    vmapped = grid.filled(runs)
    rates, seeds = zip(*(RUNS[number] for number in vmapped), strict=True)
    arrays = VmappedRuns(np.array(rates, np.float32), np.array(seeds, np.uint32), np.array(seeds, np.int32))
    generator = np.random.default_rng(0)
    drawn = [generator.integers(0, high, (2, 3, 4, size)) for high, size in ((16, 8), (8, 2), (16, 2))]
    batches = grid.replicate(Batches(*(array.astype(np.int32) for array in drawn)))
    state, losses = grid.train(grid.init(arrays), arrays, 1.0, batches, 0, 3)
    expect_spread(grid, state, 8)
    expect_spread(grid, grid.select(state, vmapped[2:6]), 4)
    return [np.asarray(losses), np.asarray(grid.evaluate(state.params, arrays, batches))]


def expect_spread(grid: Grid, state: GridState, vmapped: int) -> None:
    """Every device has its share of the runs."""
    for leaf in jax.tree.leaves((state.params, state.opt_state.mu)):
        shards = leaf.addressable_shards
        assert [len(shard.data) for shard in shards] == [vmapped // grid.mesh.size] * grid.mesh.size
        assert len({shard.device for shard in shards}) == grid.mesh.size
