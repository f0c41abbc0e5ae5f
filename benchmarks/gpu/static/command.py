"""`static`: measure the resources of whole models on an absent GPU, part by part, from compiled programs."""

import itertools
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from based_jax.mixers.contract import head_layout
from based_jax.models import ModelConfig, presets
from based_jax.validate import expect_choice, expect_writable
from benchmarks import report as reporting
from benchmarks import tables
from benchmarks.flags import Counts, Names, expect_counts, expect_items
from benchmarks.gpu.io_model import GPUS, Rates
from benchmarks.gpu.static import cost, hlo
from benchmarks.gpu.static.cost import Work
from benchmarks.gpu.static.programs import PROGRAMS
from benchmarks.gpu.static.resources import toolchain
from benchmarks.gpu.static.topology import use_cpu
from benchmarks.report import Report

FULL_ATTENTION = "attention"
"""The mixer whose softmax cuDNN would compute."""

SOFTMAX = ", softmax"
"""Suffix of a mixer's name for its `ops.softmax_attention`."""

PRODUCTS = re.compile(
    r"/mixer\.mix/(?:[\w.]+/)*(?:(?:q|k|v|out|in_proj|\w*_proj|gate\w*)/(?:dot_general|transpose)"
    r"|\w*row_products?/pallas_call)$"
)
"""Scopes of products with the weights of a mixer, and of their gradients."""

PLACES = (
    ("cross_entropy", "cross-entropy"),
    ("optimizer", "optimizer"),
    ("final_norm", "norms"),
    ("unembed", "output embedding"),
    ("LanguageModel.hidden", "embedding"),
)
"""A word in the scope -> the part, for scopes outside of the layers; the first match counts."""


@dataclass(frozen=True)
class Static:
    """Compile training steps, prompts and decoding steps of language models for a GPU, without one.

    For each part of a model: bytes and FLOPs, launches, and the least time that the GPU's datasheet allows.
    Nothing runs, and no time is measured. cuDNN cannot be compiled for an absent GPU, so where full attention
    would use it, its cost is computed by formula. Needs the extra `inspect`.
    """

    presets: Annotated[Names, tyro.conf.arg(aliases=["--preset"])] = ("based-360m", "attn-360m", "mamba-360m")
    """Models."""
    schedule: str = ""
    """Number of layers instead of the models' own, as CLS."""
    programs: Names = ("train", "decode")
    """Programs: train, prefill, decode."""
    gpu: Annotated[str, tyro.conf.arg(aliases=["--device"])] = "H200"
    """H200, H100, A100, RTX 4090 or B200."""
    batch: int = 16
    """Rows of a training step and of a prompt."""
    length: int = 2048
    """Tokens per row of a training step and of a prompt."""
    decode_batches: Counts = (1, 128)
    """Rows of decoding steps."""
    after: int = 1024
    """Tokens per row before a decoding step."""
    dtype: str = "bfloat16"
    """Dtype in which the models compute."""
    json: Path | None = None
    """Write every number into this file."""

    def run(self, command: str) -> int:
        """Compile, print and write; return 0, or 130 after Ctrl-C.

        Raises:
            ImportError: a wheel of the extra `inspect` is missing.
            ValueError: a flag with a wrong value, or a file that cannot be read or written.
        """
        expect_choice("--gpu", self.gpu, tuple(GPUS))
        expect_items(self, presets=presets.names(), programs=tuple(PROGRAMS))
        expect_counts(self, "batch", "length", "after", "decode_batches")
        expect_writable(self, "json")
        use_cpu()
        settings = {
            "gpu": self.gpu,
            "rates": GPUS[self.gpu]._asdict(),
            "dtype": self.dtype,
            "toolchain": toolchain(),
        }
        found = reporting.new_report("static", command, settings, [], ["Compiled, not run: no GPU was used."])
        measure = partial(self._measure_all, found)
        return reporting.make(found, measure, f"Compiled for {self.gpu}", text, self.json)

    def _measure_all(self, found: Report) -> bool:
        decode = [("decode", batch, self.after) for batch in self.decode_batches]
        for preset, name in itertools.product(self.presets, self.programs):
            for program, batch, length in decode if name == "decode" else [(name, self.batch, self.length)]:
                where = {"preset": preset, "program": program, "batch": batch, "length": length}
                reporting.say(f"compiling {name_of(where)}")
                rows, summary = self._measure(preset, program, batch, length)
                found["rows"] += [where | row for row in rows]
                found["summary"][name_of(where)] = summary
                if self.json:
                    reporting.save(found, self.json)
        return True

    def _measure(
        self, preset: str, program: str, batch: int, length: int
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        config = presets.get(preset).replace(dtype=self.dtype)
        if self.schedule:
            config = config.replace(schedule=self.schedule)
        gpu = GPUS[self.gpu]
        compiled = PROGRAMS[program](config, batch, length, gpu.kind)
        count = cost.turn if program == "decode" else cost.work
        works = count(hlo.read(compiled.as_text() or ""))
        rows = by_part(works, config, gpu)
        memory: Any = compiled.memory_analysis()
        tokens = batch if program == "decode" else batch * length
        summary = {
            "tokens": tokens,
            "floor_seconds": sum(row["floor_seconds"] for row in rows),
            "floor_seconds_with_cudnn": floor_with_cudnn(rows, config, batch, length, program, gpu),
            "launches": sum(row["launches"] for row in rows),
            "scratch_bytes": memory.temp_size_in_bytes,
            "argument_bytes": memory.argument_size_in_bytes,
        }
        return rows, summary


def by_part(works: list[Work], config: ModelConfig, gpu: Rates) -> list[dict[str, Any]]:
    """Return a row per part of the model, the longest first; `unknown` counts kernels without a formula."""
    parts: dict[str, dict[str, float]] = defaultdict(
        lambda: {"bytes": 0, "flops": 0, "launches": 0, "floor_seconds": 0, "unknown": 0}
    )
    for each in works:
        row = parts[part_of(each.scope, config)]
        row["bytes"] += each.bytes
        row["flops"] += each.flops
        row["launches"] += each.launches
        row["floor_seconds"] += each.seconds(gpu)
        row["unknown"] += not each.is_known
    rows = [{"part": part, **row} for part, row in parts.items()]
    return sorted(rows, key=lambda row: -row["floor_seconds"])


def part_of(scope: str, config: ModelConfig) -> str:
    """Return the part's name: each mixer by its name, with its weight products separate from the rest."""
    if layer := re.search(r"\blayers_(\d+)/(mixer|mlp)\b", scope):
        if layer[2] == "mlp":
            return "MLP"
        mixer = config.layer(int(layer[1])).mixer
        if PRODUCTS.search(scope):
            return f"{mixer}, products with weights"
        return mixer + SOFTMAX * ("/softmax_attention/" in scope)
    if re.search(r"\blayers_\d+\b", scope):
        return "norms"  # with the residual sum
    return next((part for word, part in PLACES if word in scope), "other")


def floor_with_cudnn(
    rows: list[dict[str, Any]], config: ModelConfig, batch: int, length: int, program: str, gpu: Rates
) -> float:
    """Return the program's least seconds, but for training and prompts with full attention by formula."""
    layers = [config.layer(i) for i in range(config.num_layers) if config.layer(i).mixer == FULL_ATTENTION]
    if not layers or program == "decode":
        return sum(row["floor_seconds"] for row in rows)
    options = layers[0].options
    heads, kv_heads, width = head_layout(config.d_model, options["num_heads"], options.get("num_kv_heads"))
    fused = cost.fused_attention(batch, length, heads, kv_heads, width, trains=program == "train")
    others = (row["floor_seconds"] for row in rows if row["part"] != f"{FULL_ATTENTION}{SOFTMAX}")
    return sum(others) + len(layers) * fused.seconds(gpu.bandwidth, gpu.products)


def text(report: Report) -> str:
    """Return a table of the programs, then one for each with its parts."""
    settings = report["settings"]
    rates = settings["rates"]
    tools = ", ".join(f"{name} {version}" for name, version in settings["toolchain"].items())
    heads = ("program", "floor, ms", "with cuDNN, ms", "tokens/s at most", "launches", "scratch, GB")
    parts = [
        f"Compiled for {settings['gpu']} in {settings['dtype']} with {tools}; not run. Floors at "
        f"{rates['bandwidth'] / 1e12:g} TB/s and {rates['products'] / 1e12:g} TFLOP/s.",
        tables.table(heads, map(_program, report["summary"], report["summary"].values())),
    ]
    for name in report["summary"]:
        # Older reports repeat the rows with cuDNN's attention.
        rows = [row for row in report["rows"] if name_of(row) == name and not row.get("cudnn")]
        total = sum(row["floor_seconds"] for row in rows)
        columns = (name, "GB", "TFLOP", "launches", "floor, ms", "share")
        parts.append(tables.table(columns, (_part(row, total) for row in rows)))
    return tables.blocks(*parts)


def name_of(row: dict[str, Any]) -> str:
    """Describe a row's program, its key in the summary."""
    size = f"{row['batch']} {'after' if row['program'] == 'decode' else 'x'} {row['length']}"
    return f"{row['preset']}, {row['program']} {size}"


def _program(name: str, x: dict[str, Any]) -> list[str]:
    least = x["floor_seconds_with_cudnn"]
    cudnn = f"{1e3 * least:.3g}" if least != x["floor_seconds"] else tables.MISSING
    rate = f"{x['tokens'] / least:,.0f}"
    floor, launches = f"{1e3 * x['floor_seconds']:.3g}", f"{x['launches']:,.0f}"
    return [name, floor, cudnn, rate, launches, f"{x['scratch_bytes'] / 1e9:.2f}"]


def _part(row: dict[str, Any], total: float) -> list[str]:
    note = f" ({row['unknown']:.0f} kernels without a formula)" if row["unknown"] else ""
    sizes = f"{row['bytes'] / 1e9:.3g}", f"{row['flops'] / 1e12:.3g}", f"{row['launches']:,.0f}"
    return [
        row["part"] + note,
        *sizes,
        f"{1e3 * row['floor_seconds']:.3g}",
        f"{row['floor_seconds'] / total:.0%}",
    ]
