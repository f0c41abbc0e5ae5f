"""`adopt`: add reports of a GPU machine to this checkout: results, tables, pages and the README's figure."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from based_jax import plot
from benchmarks import measured_gpu, measured_models, measured_ops
from benchmarks.measured_gpu import Device
from benchmarks.overview import Overview
from pallas_kernels import adopt, markdown

BLOCKS: dict[str, Mapping[str, Callable[[Device], Iterator[str]]]] = {
    "README.md": {"checks": measured_ops.checks, "rates": measured_models.rates},
    "docs/benchmarks.md": {
        "attention": measured_ops.attention,
        "attention_losses": measured_ops.attention_losses,
        "training": measured_models.training,
    },
    "docs/numerics.md": {"errors": measured_ops.errors},
    "docs/decoding.md": {
        "steps": measured_ops.steps,
        "step_losses": measured_ops.step_losses,
        "generation": measured_models.generation,
    },
}
"""Page -> the names of its blocks, ``<!-- measured:NAME -->``, and their paragraphs for a GPU."""

FLOORS = "benchmarks/results/static/h200.json"


@dataclass(frozen=True)
class Adopt:
    """Add reports of a GPU machine: results, tables of block sizes and backends, pages and the figure."""

    reports: Path
    """Directory with the reports: the --out of the commands on that machine."""

    def run(self, command: str) -> int:
        """Write; return 0.

        Raises:
            ValueError: a file is not a complete report of a GPU; then nothing is written.
        """
        adopt.main(["--reports", str(self.reports)])
        for path, text in updated(adopt.CHECKOUT).items():
            if path.read_text() != text:
                path.write_text(text)
                print(f"wrote {path}", flush=True)
        if (reason := plot.missing()) is not None:
            print(f"the figure stays as it is: {reason}")
            return 0
        return Overview().run(command)


def updated(tree: Path) -> dict[Path, str]:
    """Return the pages with their blocks of measured numbers, from the reports kept in `tree`.

    Raises:
        ValueError: a page lacks the markers of a block.
    """
    devices = measured_gpu.devices(adopt.kept({}, tree))
    floors = json.loads((tree / FLOORS).read_text())
    found = {
        page: {name: _paragraphs(devices, block) for name, block in blocks.items()}
        for page, blocks in BLOCKS.items()
    }
    found["docs/gpu.md"] = {
        "programs": _paragraphs(devices, lambda device: measured_models.programs(device, floors))
    }
    found["docs/kernels.md"] = {"defaults": measured_ops.defaults(tree)}
    texts = {}
    for page, blocks in found.items():
        text: str | None = (tree / page).read_text()
        for name, block in blocks.items():
            text = text and markdown.between_markers(text, f"measured:{name}", block)
            if text is None:
                raise ValueError(f"{page}: expected the lines <!-- measured:{name} --> and its end")
        texts[tree / page] = text or ""
    return texts


def _paragraphs(devices: list[Device], block: Callable[[Device], Iterator[str]]) -> str:
    return "\n\n".join(paragraph for device in devices for paragraph in block(device))
