"""Run directories: damaged, foreign and renamed files, then what a resumed run reads."""

import atexit
import contextlib
import json
import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp

from based_jax.directory_lock import sole_writer
from based_jax.training.commands.lm import PROG, LMConfig
from based_jax.training.run.checkpoints import Checkpoints
from based_jax.training.run.directory import has_checkpoints, parse_run, prepare_run
from based_jax.training.run.metrics import MetricWriter, read_metrics
from tests.hostile.attack import Attack
from tests.hostile.damage import Rng, damaged_bytes, mutated_json, other_kind, write_json

STEPS = (5, 10)
NAMES = ["15", "9", "011", "0", "9" * 200, "\u00b2", "15.orbax-checkpoint-tmp-1", "step_15", "-3"]
LINES = [b"garbage\n", b"\0\0\n", b"{}\n", b"\xff\n", b'{"step": -1}\n', b'{"step"', b"[" * 10**5 + b"\n"]
MAY_CHANGE = ("workdir", "resume")
DATA = {"crc32": 1, "held_out_crc32": 2}


def attacks(rng: Rng, count: int) -> Iterator[Attack]:
    """A run goes on from a state that it saved, or is refused, but not where what is hurt can be replaced."""
    logging.getLogger().setLevel(logging.CRITICAL)  # warnings of damage are what is expected
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    original, target = folder / "original", folder / "target"
    _make(original)
    lines = read_metrics(original / "metrics.jsonl")
    config = json.loads((original / "config.json").read_text(encoding="utf-8"))
    files = [path.relative_to(original) for path in original.rglob("*") if path.is_file()]
    shutil.copytree(original, target)
    _resume(target, lines, has_substitute=True)
    for number in range(count):
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(original, target)
        kind = str(rng.choice(["bytes", "kind", "config", "metrics", "more", "copy"]))
        name = files[int(rng.integers(len(files)))]
        if kind == "bytes":
            damage, changed = damaged_bytes(rng, (target / name).read_bytes())
            (target / name).write_bytes(changed)
        elif kind == "kind":
            damage = other_kind(rng, target / name, pipes=name.parts[0] != "checkpoints")  # Orbax would wait
        elif kind == "config":
            name = Path("config.json")
            damage, changed = mutated_json(rng, config)
            write_json(target / name, changed)
        elif kind == "metrics":
            name = Path("metrics.jsonl")
            damage = _damage_metrics(rng, target / name)
        else:
            name = Path("checkpoints") / str(rng.choice(NAMES))
            damage = _add(rng, kind, target / name)
        has_substitute = name.parts[:2] == ("checkpoints", "10") or kind in ("metrics", "more", "copy")
        yield Attack(
            f"{kind} {number}: {name}, {damage}",
            lambda has_substitute=has_substitute: _resume(target, lines, has_substitute),
        )


def _make(workdir: Path) -> None:
    """A run of ten steps with two checkpoints."""
    prepare_run(LMConfig(workdir), model={}, data=DATA, may_change=MAY_CHANGE)
    with MetricWriter(workdir, steps=10) as writer:
        for step in range(1, 11):
            writer.write(step, {"loss": 1 / step}, shown=())
    with Checkpoints(workdir) as checkpoints:
        for step in STEPS:
            checkpoints.save(step, _state(step), {"place": step})


def _state(step: int) -> dict[str, jax.Array]:
    return {"kernel": jnp.full((64, 8), step, jnp.float32), "step": jnp.int32(step)}


def _damage_metrics(rng: Rng, path: Path) -> str:
    """Another line at any position."""
    lines = path.read_bytes().splitlines(keepends=True)
    at = int(rng.integers(len(lines) + 1))
    added = LINES[int(rng.integers(len(LINES)))]
    path.write_bytes(b"".join([*lines[:at], added, *lines[at:]]))
    return f"{added[:20]!r} before line {at + 1}"


def _add(rng: Rng, kind: str, path: Path) -> str:
    """Something else among the checkpoints."""
    if kind == "copy":
        shutil.copytree(path.with_name("5"), path)
        return "a copy of 5"
    path.mkdir()
    if rng.random() < 0.5:
        (path / "state").mkdir()
        (path / "state" / "file").write_bytes(b"x")
        return "a foreign directory"
    return other_kind(rng, path)


def _resume(workdir: Path, lines: list[dict[str, Any]], has_substitute: bool) -> None:
    """What a resumed run does before its first step."""
    try:
        _go_on(workdir, lines)
    except (ValueError, TypeError, OSError) as error:
        if has_substitute or "\n" in str(error):
            raise AssertionError(f"refused beside an intact checkpoint, or in two lines: {error}") from error
        raise


def _go_on(workdir: Path, lines: list[dict[str, Any]]) -> None:
    with sole_writer(workdir):
        settings = parse_run(LMConfig, [f"--workdir={workdir}", "--resume"], PROG)
        assert has_checkpoints(workdir)
        prepare_run(settings, model={}, data=DATA, may_change=MAY_CHANGE)
        abstract = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), _state(0)
        )
        with contextlib.closing(Checkpoints(workdir)) as checkpoints:
            step = checkpoints.newest_intact(abstract)
            assert step in STEPS, f"step {step}"
            state, position = checkpoints.restore(step, abstract)
            assert position == {"place": step}
            chex.assert_trees_all_equal(state, _state(step))
        with MetricWriter(workdir, steps=10, start=step):
            pass
        kept = read_metrics(workdir / "metrics.jsonl")
        assert all(line in lines or line["step"] < 0 for line in kept if "loss" in line)
