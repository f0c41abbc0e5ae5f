"""The compiler's report: its numbers where the optional wheels are, everything else everywhere."""

import dataclasses
import importlib.util
import subprocess

import jax
import pytest

from benchmarks.__main__ import main
from benchmarks.gpu.cases import catalog
from benchmarks.gpu.static import inspect, resources, topology
from benchmarks.gpu.static.resources import Resources, blocks_per_sm
from pallas_kernels import offline
from tests.kernels import sharded, toy

needs_compiler = pytest.mark.skipif(
    not any(map(importlib.util.find_spec, topology.PLUGINS)) or jax.__version_info__ < (0, 11),
    reason="needs jax 0.11 or newer with its CUDA plugin (extra `inspect`)",
)

RESOURCES = Resources("gram", 68, 0, 4, 8, 16384, 7, 4, 0)


def test_the_kernels_of_a_lowered_program_are_found():
    case = toy.case(toy.Variant(warps=8, stages=2))
    lowered = offline.lower(lambda x, y: case.function(x, y) + 1, *case.arguments)
    assert resources.kernels(lowered) == {"gram": 8}
    with pytest.raises(LookupError, match=r"no __gpu\$xla.gpu.triton"):
        resources.kernels(offline.lower(lambda x: x + 1, case.arguments[0]))


@pytest.mark.parametrize(
    ("registers", "warps", "shared", "blocks"),
    [
        (255, 4, 0, 2),  # registers: 8 warps of 255 fit
        (219, 8, 34816, 1),
        (32, 4, 0, 16),  # 64 warps
        (16, 1, 0, 32),  # 32 programs
        (32, 4, 113 * 1024, 2),  # shared memory
        (32, 4, 114 * 1024, 1),
    ],
)
def test_blocks_per_multiprocessor(registers, warps, shared, blocks):
    assert blocks_per_sm(registers, warps, shared) == blocks


def test_collectives_in_compiled_text():
    text = "%a = f32[8] all-gather-start(%x), b\n%b = f32[8] all-gather-done(%a)\n%c = f32[] all-reduce(%d)"
    assert sharded.collectives(text) == ["all-gather", "all-reduce"]
    assert sharded.collectives('custom-call(%x), metadata={op_name="all-reduce"}') == []


@pytest.fixture
def toys(monkeypatch):
    """The catalogue is two toys, and no compiler runs."""
    cases = [toy.case(), toy.case(length=64)]
    monkeypatch.setattr(catalog, "cases", lambda match="": [case for case in cases if match in case.name])
    monkeypatch.setattr(catalog, "on_hopper", lambda match="": [])
    monkeypatch.setattr(inspect, "resources", lambda case: [RESOURCES])


def test_the_page_is_written(toys, monkeypatch, tmp_path, capsys):
    both = [RESOURCES, dataclasses.replace(RESOURCES, kernel="sum")]
    monkeypatch.setattr(inspect, "resources", lambda case: both if "N64" in case.name else both[:1])
    assert main(["inspect", "--markdown", str(tmp_path / "report.md")]) == 0
    page = (tmp_path / "report.md").read_text()
    assert "sm_90a" in page
    for title in (
        "N512 Variant(chunk=64, warps=4, stages=1)",
        "N64 Variant(chunk=64, warps=4, stages=1): sum",
    ):
        assert f"| toy/gram {title} | 68 | 0 | 4/8 | 16.0 | 7 | 4 | 0 |" in page
    assert "toy/gram" in capsys.readouterr().out


def test_block_sizes_are_those_of_an_h200():
    case, *_ = inspect.choose("attention/dv K8 V64 bfloat16")
    assert case.variant.stages == 3, "elsewhere the kernel loads nothing ahead"


DUMP = """\
001: kCustomKernel [source | sink] gram grid: [8, 1, 1] threads: [128, 1, 1]  shared_memory: 16384 bytes
002: kKernel wrapped_add grid: [8, 1, 1] threads: [128, 1, 1]  shared_memory: 0 bytes
"""


def test_shared_memory_of_a_compiled_program(tmp_path):
    (tmp_path / "module_0001.jit_f.thunk_sequence.txt").write_text(DUMP)
    assert resources._shared(tmp_path) == {"gram": 16384, "wrapped_add": 0}


def test_the_assembler_that_keeps_its_input(tmp_path):
    """XLA runs it; here the shell does."""
    assembler, source = tmp_path / "an assembler", tmp_path / "source"
    assembler.write_text('#!/bin/sh\necho "$@"\n')
    assembler.chmod(0o755)
    source.write_text(".visible .entry gram(\n)")
    tool = resources._write_assembler(tmp_path, str(assembler))
    assert subprocess.run([tool, "--version"], capture_output=True, text=True).stdout == "--version\n"
    assert resources._sources(tmp_path) == {}
    done = subprocess.run([tool, source, "-o", "x"], capture_output=True, text=True)
    assert done.stdout == f"{source} -o x\n"
    assert resources._sources(tmp_path) == {"gram": ".visible .entry gram(\n)"}


def test_a_kernel_that_the_assembler_refuses(monkeypatch, tmp_path):
    tool = tmp_path / "ptxas"
    tool.write_text("#!/bin/sh\necho fatal: no such instruction >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setattr(resources, "assembler", lambda: str(tool))
    with pytest.raises(RuntimeError, match="ptxas: fatal: no such instruction"):
        resources.assemble("gram", "", 4, 0)


def test_a_missing_wheel_is_named_with_the_command_that_installs_it(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in topology.PLUGINS else find_spec(name)
    )
    with pytest.raises(ImportError, match=r"pip install 'based-jax\[inspect\]'"):
        topology.topology(7)  # none is cached


@needs_compiler
def test_kernels_whose_numbers_are_known(toys, monkeypatch):
    """One warp cannot hold a 64 x 64 sum and its operands."""
    cases = [toy.case(), toy.case(toy.Variant(warps=1))]
    monkeypatch.setattr(catalog, "cases", lambda match="": cases)
    topology.use_cpu()
    found = (resources.of_portable(case.function, *case.arguments) for case in inspect.choose())
    four, one = (kernel for (kernel,) in found)
    assert (four.kernel, four.wgmma) == ("gram", 4), "64 tokens in steps of 16"
    assert 16 <= four.registers <= 255
    assert four.spill_stores == four.spill_loads == four.stack == 0
    assert four.shared >= 8192
    assert (one.registers, one.spill_stores > 0) == (255, True)


@needs_compiler
@pytest.mark.parametrize("steps", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_sharded_calls_need_no_collective_on_8_gpus(steps):
    topology.use_cpu()
    mesh = sharded.mesh(topology.topology(8))
    for call in sharded.calls(batch=8, heads=4, length=64):
        if ("step" in call.name) == steps:
            compiled = topology.compile_program(call.function, *call.sharded(mesh))
            assert sharded.collectives(compiled.as_text() or "") == [], call.name
