"""What is compiled into exported programs, checked before any work."""

import dataclasses

from based_jax.validate import expect, expect_choice, expect_integer

PLATFORMS = ("cpu", "cuda")
KERNELS = ("xla", "pallas")
WEIGHTS = ("beside", "inside")


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is compiled into the programs; ValueError: a wrong value, or values that do not go together."""

    platforms: tuple[str, ...] = PLATFORMS
    """where they run: cpu, cuda or both"""
    kernels: str = "xla"
    """"pallas" puts the fused GPU kernels of this library inside: for cuda alone, with a batch size"""
    batch_size: int | None = None
    """rows of every call; None is any number of them"""
    max_length: int = 2048
    """tokens that a row may have, prompt included, in models whose state grows with them"""
    prefill_chunk: int = 128
    """C, tokens of a row that one call of `prefill` reads"""
    decode_chunk: int = 16
    """K, tokens of a row that one call of `extend` makes at most"""
    weights: str = "beside"
    """"beside" the programs, as an argument of theirs, or "inside" each of them"""

    def __post_init__(self) -> None:
        expect(bool(self.platforms), "platforms", self.platforms, "at least one of cpu, cuda")
        for platform in self.platforms:
            expect_choice("platforms", platform, PLATFORMS)
        expect(len(set(self.platforms)) == len(self.platforms), "platforms", self.platforms, "each once")
        expect_choice("kernels", self.kernels, KERNELS)
        expect_choice("weights", self.weights, WEIGHTS)
        for name in ("max_length", "prefill_chunk", "decode_chunk"):
            expect_integer(name, getattr(self, name), 1)
        if self.batch_size is not None:
            expect_integer("batch_size", self.batch_size, 1)
        if self.kernels == "pallas":
            expect(self.platforms == ("cuda",), "platforms", self.platforms, "cuda alone with kernels pallas")
            expected = "a number (--batch-size) with kernels pallas, whose grids depend on it"
            expect(self.batch_size is not None, "batch_size", None, expected)
