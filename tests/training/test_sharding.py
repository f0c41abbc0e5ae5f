"""What a mesh costs: bytes between devices, bytes on each of them, and the plan of a run."""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from based_jax.models import MixerSpec, ModelConfig
from based_jax.training.commands import lm
from based_jax.training.devices.meshes import mesh_sizes, parse_mesh, shard_bytes
from based_jax.training.step import Programs
from tests.subprocesses import run_module, run_python
from tests.training.test_step import programs


@pytest.mark.slow
def test_memory_and_traffic():
    run_python("from tests.training.test_sharding import sharded_parameters; sharded_parameters()", devices=8)


def sharded_parameters() -> None:
    """By the plans of the compiled programs."""
    mixers = {
        "C": MixerSpec("gated_conv"),
        "L": MixerSpec("linear_attention", {"num_heads": 8, "feature_dim": 8}),
    }
    scratch, parameters = {}, {}  # bytes by schedule, of the last mesh
    for schedule, mesh in (("L", "fsdp=2,tensor=4"), ("CLCL", "fsdp=8"), ("CL", "fsdp=8")):
        config = ModelConfig(vocab_size=1024, d_model=128, schedule=schedule, mlp_hidden=256, mixers=mixers)
        compiled = programs(config, mesh=parse_mesh(mesh))
        # The initialisation's results are shards.
        memory = compiled.init.lower(jax.random.key(0)).compile().memory_analysis()
        leaves = jax.tree.leaves(compiled.abstract_state)
        whole = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
        own = sum(map(shard_bytes, leaves))
        assert own < whole / 7  # of eight; what no axis divides is everywhere
        assert own <= memory.output_size_in_bytes < own * 1.01
        scratch[schedule] = memory.temp_size_in_bytes
        parameters[schedule] = sum(leaf.size * 4 for leaf in jax.tree.leaves(compiled.abstract_state.params))
    # Each device draws whole layers, few at a time: more layers of a kind need little more scratch.
    assert scratch["CLCL"] - scratch["CL"] < (parameters["CLCL"] - parameters["CL"]) / 8

    whole = parameters["CL"]
    # A step brings each weight to the tokens once, and adds up its gradient. Of the activations only
    # what comes from the embedding travels, there and back.
    sent = results_of_collectives(text_of_step(compiled, (16, 64)))
    embedded = 16 * 64 * config.d_model * 4 / 8
    assert sent.keys() <= {"all-gather", "all-reduce", "all-to-all"}
    assert sent.get("all-to-all", 0) <= 2 * embedded * 8 / 7
    assert 0 < sent["all-gather"] <= whole * 1.01  # norms and token ids
    assert 0 < sent["all-reduce"] <= whole * 1.01


def results_of_collectives(program: str) -> dict[str, int]:
    """Bytes of the results on one device, by kind, of 32-bit numbers; for programs without loops."""
    kinds = "all-gather|all-reduce|reduce-scatter|collective-permute|all-to-all"
    found: dict[str, int] = {}
    for shapes, kind in re.findall(rf"= (.*?) ({kinds})(?:-start)?\(", program):
        sizes = (math.prod(map(int, axes.split(","))) for axes in re.findall(r"[fsu]32\[([\d,]+)\]", shapes))
        found[kind] = found.get(kind, 0) + 4 * sum(sizes)
    return found


def text_of_step(compiled: Programs, shape: tuple[int, int]) -> str:
    """The compiled step for a batch of this shape, rows and tokens."""
    rows = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=compiled.rows)
    step: Any = compiled.train
    return step.lower(compiled.abstract_state, {"inputs": rows, "targets": rows}).compile().as_text()


@pytest.mark.slow
def test_layers_are_whole_one_at_a_time():
    run_python("from tests.training.test_sharding import scanned_layers; scanned_layers()", devices=8)


def scanned_layers() -> None:
    """In a step no tensor is larger than one weight of one layer: stacks of layers are shards throughout."""
    config = ModelConfig(
        vocab_size=64,
        d_model=128,
        schedule="AAA",
        mlp_hidden=192,
        scan_layers=True,
        remat="block",
        mixers={"A": MixerSpec("attention", {"num_heads": 2})},
    )
    text = text_of_step(programs(config, mesh=parse_mesh("fsdp=8")), (8, 4))
    shapes = {tuple(map(int, found.split(","))) for found in re.findall(r"f32\[([\d,]+)\]", text)}
    assert (3, 128 // 8, 2, 192) in shapes  # the MLP's first maps
    assert max(map(math.prod, shapes)) == 128 * 2 * 192


def planned(one_layer, tmp_path, mesh):
    """The arguments of a dry run, and parts of what it prints."""
    flags = f"--batch-size 4 --mesh {mesh} --dry-run --workdir {tmp_path / 'run'}".split()
    parts = ("trains      all 6.58k parameters", "layers_*/mlp/out/kernel", "optimizer state", "scratch")
    return ["--preset", one_layer["preset"], *flags], parts


@pytest.mark.release
def test_a_dry_run_prints_its_plan(one_layer, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(lm, "use_virtual_devices", lambda mesh: None)  # possible before JAX is used only
    arguments, parts = planned(one_layer, tmp_path, "fsdp=1")
    assert lm.main(arguments) == 0
    printed = capsys.readouterr().out
    for part in (*parts, "1 device"):
        assert part in printed
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_dry_run_needs_no_devices(one_layer, tmp_path):
    arguments, parts = planned(one_layer, tmp_path, "fsdp=4")
    done = run_module("train.lm", *arguments)
    assert done.returncode == 0, done.stderr
    for part in (*parts, "4 devices"):
        assert part in done.stdout


def test_a_mesh_is_described_in_words():
    assert mesh_sizes("data=2,context=4") == {"data": 2, "context": 4}
    assert mesh_sizes(None) == {}
    for text in ("data", "data=0", "data=2,data=2", "rows=2", "data=-1", "data=²"):
        with pytest.raises(ValueError, match=f"mesh = '{text}': expected axis=size pairs"):
            mesh_sizes(text)
