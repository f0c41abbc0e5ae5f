"""Choose what is compiled into exported programs; checked before any work."""

import dataclasses

from based_jax.validate import expect, expect_choice, expect_integer

PLATFORMS = ("cpu", "cuda")
KERNELS = ("xla", "pallas")


@dataclasses.dataclass(frozen=True)
class Plan:
    """Settings that are compiled into the programs; ValueError: a wrong value or combination."""

    platforms: tuple[str, ...] = PLATFORMS
    """platforms to run on: cpu, cuda or both"""
    kernels: str = "xla"
    """"pallas" includes this library's fused GPU kernels: for cuda alone, with a batch size"""
    batch_size: int | None = None
    """number of rows of every call; None allows any number"""
    max_length: int = 2048
    """most tokens of a row, prompt included, in models whose state grows with them"""
    prefill_chunk: int = 128
    """C, number of tokens per row that one call of `prefill` reads"""
    decode_chunk: int = 16
    """K, most tokens per row that one call of `extend` makes"""

    def __post_init__(self) -> None:
        expect(bool(self.platforms), "platforms", self.platforms, "at least one of cpu, cuda")
        for platform in self.platforms:
            expect_choice("platforms", platform, PLATFORMS)
        expect(len(set(self.platforms)) == len(self.platforms), "platforms", self.platforms, "each once")
        expect_choice("kernels", self.kernels, KERNELS)
        for name in ("max_length", "prefill_chunk", "decode_chunk"):
            expect_integer(name, getattr(self, name), 1)
        if self.batch_size is not None:
            expect_integer("batch_size", self.batch_size, 1)
        if self.kernels == "pallas":
            expect(self.platforms == ("cuda",), "platforms", self.platforms, "cuda alone with kernels pallas")
            expected = "a number (--batch-size) with kernels pallas, whose grids depend on it"
            expect(self.batch_size is not None, "batch_size", None, expected)
