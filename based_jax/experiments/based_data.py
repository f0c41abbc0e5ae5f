"""Define the data that Based's synthetic studies share, at each scale (Based, appendix E; its code's grids).

An epoch goes through its segments in order, from short to long sequences; the tests are longer and hold more
pairs than any training sequence.
"""

from typing import Any

from based_jax.experiments.job import rates, segments

DATA: dict[str, dict[str, Any]] = {
    "paper": {
        "vocab_size": 8192,
        "train": segments(
            (64, 4, 100_000), (128, 8, 20_000), (256, 16, 20_000), (256, 32, 20_000), (256, 64, 20_000)
        ),
        "test": segments((64, 4), (64, 8), (64, 16), (128, 32), (256, 64), (512, 128), (1024, 256)),
        "test_examples": 1000,
        "batch_size": 256,
        "epochs": 32,
        "learning_rates": rates(-3, -1.5, 4),
    },
    "cpu": {
        "vocab_size": 1024,
        "train": segments((32, 4, 8192), (64, 8, 8192), (64, 16, 8192)),
        "test": segments((32, 4), (64, 8), (64, 16), (128, 32), (256, 64)),
        "test_examples": 512,
        "batch_size": 128,
        "epochs": 6,
        "learning_rates": rates(-2.5, -2, 2),
    },
    "smoke": {
        "vocab_size": 256,
        "train": segments((32, 2, 4096), (32, 4, 4096)),
        "test": segments((32, 2), (32, 4), (32, 8)),
        "test_examples": 256,
        "batch_size": 128,
        "epochs": 4,
        "learning_rates": "1e-2",
    },
}
"""Flags of the trainer."""

CPU_RATE = "0.01"
"""The learning rate of the studies that train one: in `mqar_tradeoff` no other was better by 0.001."""

ONE_RATE = {**DATA, "cpu": {**DATA["cpu"], "learning_rates": CPU_RATE}}
"""Flags of the trainer, with one learning rate at the scale cpu."""

ABOUT = {
    "paper": "The paper's grid: 8192 symbols, 4-64 pairs in 64-256 tokens, tests up to 256 pairs in 1024",
    "cpu": "A small version: 1024 symbols, 4 to 16 pairs in 32 or 64 tokens, tests up to 64 pairs in 256",
    "smoke": "Not a result, a check that everything runs: 256 symbols, 2 and 4 pairs in 32 tokens",
}
"""A sentence about each scale."""

SLICE = {"paper": ("num_pairs", "256"), "cpu": ("num_pairs", "64"), "smoke": ("num_pairs", "8")}
"""The hardest test."""
