"""The pages' tables of whole models on GPUs: training, generation, and beside the floors; see `adopt`."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks import tables
from benchmarks.gpu.measured import Device
from benchmarks.gpu.measured_ops import milliseconds
from benchmarks.tables import MISSING, significant

MODELS = {
    "based": ("based", ""),
    "attention": ("attn", ", attention by XLA"),
    "attention_cudnn": ("attn", ", attention by cuDNN"),
    "mamba": ("mamba", ""),
}
"""Candidates of whole models -> their presets and how they attend."""


def training(device: Device) -> Iterator[str]:
    """Whole training steps."""
    rows = [(*_model(step, what), row) for (step, what), row in device.rows("train").items()]
    for (step, what), row in device.rows("torch").items():
        if step.startswith("train "):
            name, *how = what.split()
            model = f"{MODELS[name][0]}-360m, torch, {', '.join(how)}"
            rows.append((model, f"{row['batch']} x {row['length']:,}", row))
    if rows:
        yield f"{device.source('timings', 'gpu')}, bfloat16:"
        yield tables.table(
            ["model", "tokens", "tokens/s", "ms a step", "peak, GB"],
            (
                [
                    model,
                    tokens,
                    f"{row['tokens_per_second']:,.0f}",
                    milliseconds(row),
                    significant(row["peak_bytes"] / 1e9) if row.get("peak_bytes") else MISSING,
                ]
                for model, tokens, row in rows
            ),
            left=2,
        )


def _model(step: str, what: str) -> tuple[str, str]:
    """Return a whole model's name and the rows and tokens of a step such as "360m B16 N2048"."""
    size, *_ = step.split()
    preset, how = MODELS[what]
    numbers = re.findall(r" [BN](\d+)", step)  # a step of one model ends in that model's name
    return f"{preset}-{size}, ours{how}", " x ".join(f"{int(number):,}" for number in numbers)


def generation(device: Device) -> Iterator[str]:
    """Tokens per second of whole models."""
    for section, words in (("generate", "New tokens"), ("prefill", "Tokens of prompts")):
        if rows := device.rows(section):
            yield f"{words} per second, {device.source('gpu')}, bfloat16:"
            body = (
                [*_model(step, what), f"{row['tokens_per_second']:,.0f}"]
                for (step, what), row in rows.items()
            )
            yield tables.table(["model", "rows, x tokens", "tokens/s"], body, left=2)


def rates(device: Device) -> Iterator[str]:
    """The most tokens per second of Based in training, and in generation."""
    parts = []
    for section, words in (("train", "training on {} tokens"), ("generate", "generation of {} rows")):
        if rows := {step: row for (step, what), row in device.rows(section).items() if what == "based"}:
            step = max(rows, key=lambda step: rows[step]["tokens_per_second"])
            model, size = _model(step, "based")
            speed = f"{rows[step]['tokens_per_second']:,.0f} ({model.removesuffix(', ours')})"
            parts.append(f"{words.format(size)}: {speed}")
    if parts:
        links = "[training](docs/gpu.md#training-steps-on-a-gpu), "
        links += "[generation](docs/decoding.md#whole-models-on-a-gpu)"
        yield f"- Tokens per second on {device.source('timings', 'gpu')}: {'; '.join(parts)} ({links})."


def programs(device: Device, floors: Mapping[str, Any]) -> Iterator[str]:
    """Measured times of the programs that `benchmarks static` counted."""
    found: dict[str, tuple[float, float]] = {}
    for (step, what), row in device.rows("train").items():
        size, rows, length = step.split()
        name = f"{MODELS[what][0]}-{size}, train {rows[1:]} x {length[1:]}"
        if name in floors["summary"]:
            found[name] = floors["summary"][name]["floor_seconds_with_cudnn"], row["seconds"]
    for (step, what), row in device.rows("generate").items():
        size, rows, *_ = step.split()
        name = f"{MODELS[what][0]}-{size}, decode {rows[1:]} after 1024"
        if what == "based" and name in floors["summary"]:  # whose steps take as long after any context
            found[name] = floors["summary"][name]["floor_seconds"], int(rows[1:]) / row["tokens_per_second"]
    if not found:
        return
    gpu = floors["settings"]["gpu"]
    other = "" if gpu in device.name else ", another card with other floors of its own"
    yield (
        f"Floors of an {gpu} (attn-360m: with cuDNN's attention), times of {device.source('timings', 'gpu')}"
        f"{other}."
    )
    yield tables.table(
        ["program", f"floor, {gpu}, ms", f"measured, {device.name}, ms", "measured over floor"],
        (
            [name, significant(1e3 * floor), significant(1e3 * time), f"{time / floor:.2f}"]
            for name, (floor, time) in found.items()
        ),
    )
