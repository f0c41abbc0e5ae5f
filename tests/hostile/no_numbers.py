"""NaN, infinities and huge numbers as padding, in other documents and in the future, in every mixer."""

from collections.abc import Iterator

import numpy as np

from based_jax.testing import laws
from tests.hostile.attack import Attack
from tests.mixers.test_contract import CASES, WIDTH, runner

SECONDS = 60.0
"""a mixer's first attack compiles it"""
MEBIBYTES = 500.0

BAD = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e30, 1e20, 1e13], np.float32)


def attacks(rng: np.random.Generator, count: int) -> Iterator[Attack]:
    """Yield random positions of random bad numbers in rows of random documents, mixer after mixer."""
    names = sorted(CASES)
    for number in range(count):
        name = names[number * len(names) // count]
        x = rng.normal(size=(laws.ROWS, laws.LENGTH, WIDTH)).astype(np.float32)
        ids = np.sort(rng.integers(0, 4, laws.LENGTH))[None].repeat(laws.ROWS, axis=0)
        mask = np.arange(laws.LENGTH) < rng.integers(1, laws.LENGTH + 1, (laws.ROWS, 1))
        is_bad = (rng.random(x.shape[:2]) < rng.choice([0.0, 0.05, 0.3])) | ~mask
        spread = rng.random(x.shape) < rng.choice([0.1, 1.0])
        spread[..., 0] = True
        bad = np.where(is_bad[..., None] & spread, rng.choice(BAD, x.shape), x)
        cut = int(rng.integers(0, laws.LENGTH + 1))
        what = f"{name}: documents {ids[0].tolist()}, {mask.sum(1)} real, bad {np.argwhere(is_bad).tolist()}"

        def run(name: str = name, arrays: tuple = (x, bad, ids, mask, is_bad), cut: int = cut) -> None:
            _check(runner(name), *arrays, cut)

        yield Attack(f"{what}, cut at {cut}", run)


def _check(
    run: laws.Runner, x: np.ndarray, bad: np.ndarray, ids: np.ndarray, mask: np.ndarray, is_bad: np.ndarray,
    cut: int,
) -> None:  # fmt: skip
    """Clean outputs where nothing bad came before in the document, NaN after it; in one call and in two."""
    same = ids[:, :, None] == ids[:, None]
    broken = (np.tri(x.shape[1], dtype=bool) & same & (is_bad & mask)[:, None]).any(axis=2)
    clean, _ = run(np.where(is_bad[..., None], 0, x), segment_ids=ids, mask=mask)
    whole, _ = run(bad, segment_ids=ids, mask=mask)
    sizes = [cut, x.shape[1] - cut]
    for y in (whole, laws.in_chunks(run, bad, sizes, mask=mask, segment_ids=ids)[0]):
        laws.expect_broken(
            np.where(mask[..., None], y, 0), np.where(mask[..., None], clean, 0), broken & mask
        )
