"""The compiler's report: its numbers where the optional wheels are, everything else everywhere."""

import dataclasses
import importlib.util
import json
import re
import subprocess
from dataclasses import replace

import pytest

from benchmarks.__main__ import PROGRAM, main
from benchmarks.static import compile_offline, inspect, pages, sass, topology, xla_report
from benchmarks.static.compile_offline import Resources, blocks_per_sm
from benchmarks.static.inspect import Entry
from pallas_kernels import catalog, offline
from pallas_kernels.case import Case
from pallas_kernels.taylor_attention import cases as taylor_cases
from pallas_kernels.taylor_attention.function import Variant
from tests.commands import run_here
from tests.kernels import toy
from tests.subprocesses import run_module


def _run(*flags: str) -> int:
    return main(["inspect", *flags])


def _has_compiler() -> bool:
    try:
        return bool(compile_offline.compiler())
    except ImportError:
        return False


HAS_COMPILER = _has_compiler()
HAS_PLUGIN = any(map(importlib.util.find_spec, topology.PLUGINS))
needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="needs the wheels of the extra `inspect`")
needs_plugin = pytest.mark.skipif(not HAS_PLUGIN, reason="needs jax's CUDA plugin (extra `inspect`)")

RESOURCES = Resources(
    kernel="gram",
    warps=4,
    stages=1,
    registers=68,
    stack=0,
    spill_stores=0,
    spill_loads=0,
    shared=16384,
    blocks_per_sm=7,
    wgmma=4,
    mma=0,
    loop=sass.Loop(114, 114, 128, 2, 2),
    ptxas="12.9.86",
)


def _entry(case=None, **changes) -> Entry:
    return Entry(case or toy.case(), (replace(RESOURCES, **changes),))


def _report(version: str, *entries: Entry) -> pages.Report:
    return {"toolchain": {"jax": version}, "cases": [inspect.as_dict(entry) for entry in entries]}


def _message(stderr: str) -> str:
    """The command's own line: the plugin's libraries may have reported before it."""
    return stderr.strip().splitlines()[-1]


def test_the_kernels_of_a_lowered_program_are_found():
    variant = toy.Variant(warps=8, stages=2)
    case = toy.case(variant)
    (kernel,) = compile_offline.kernels(offline.lower(lambda x, y: case.function(x, y) + 1, *case.arguments))
    assert (kernel.name, kernel.warps, kernel.stages) == ("gram", 8, 2)
    assert "tt.dot" in compile_offline._text(kernel.code)


def test_a_program_without_kernels_is_an_error():
    x = toy.case().arguments[0]
    with pytest.raises(LookupError, match=r"no __gpu\$xla.gpu.triton"):
        compile_offline.kernels(offline.lower(lambda x: x + 1, x))


@pytest.mark.parametrize(
    ("registers", "warps", "shared", "blocks"),
    [
        (255, 4, 0, 2),  # registers: 8 warps of 255 fit
        (219, 8, 34816, 1),
        (32, 4, 0, 16),  # 64 warps
        (16, 1, 0, 32),  # 32 programs
        (32, 4, 100 * 1024, 2),  # shared memory
        (32, 4, 113 * 1024, 2),
        (32, 4, 114 * 1024, 1),
    ],
)
def test_blocks_per_multiprocessor(registers, warps, shared, blocks):
    assert blocks_per_sm(registers, warps, shared) == blocks


LISTING = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   LDG.E R2, [R4] ;
.L_x_1:
        /*0020*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0030*/                   STL [R1], R2 ;
        /*0040*/              @P0  BRA `(.L_x_1) ;
        /*0050*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0060*/              @P1  BRA `(.L_x_0) ;
        /*0070*/                   EXIT ;
.L_x_2:
        /*0080*/                   BRA `(.L_x_2);
"""


def test_the_main_loop_is_the_inner_one_with_the_matmuls():
    loop = sass.main_loop(LISTING, warps=8)
    assert loop == sass.Loop(instructions=3, issue_slots=6, tensor_cycles=64, local=1, barriers=0)


def test_without_matmuls_the_main_loop_is_the_longest():
    loop = sass.main_loop(LISTING.replace("HGMMA", "FFMA"), warps=4)
    assert loop is not None
    assert (loop.instructions, loop.barriers, loop.tensor_cycles) == (6, 1, 0)


def test_a_kernel_may_have_no_loop():
    assert (
        sass.main_loop("        /*0000*/     EXIT ;\n.L_x_2:\n        /*0010*/   BRA `(.L_x_2);", warps=4)
        is None
    )


def test_collectives_in_compiled_text():
    text = "%a = f32[8] all-gather-start(%x), b\n%b = f32[8] all-gather-done(%a)\n%c = f32[] all-reduce(%d)"
    assert topology.collectives(text) == ["all-gather", "all-reduce"]
    assert topology.collectives('custom-call(%x), metadata={op_name="all-reduce"}') == []


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (_entry(), ""),
        (_entry(stack=40), "spills 40 bytes per thread"),
        (_entry(shared=300_000), "needs more than 232448 bytes of shared memory"),
        (Entry(toy.case(), error="ValueError: no"), "ValueError: no"),
    ],
)
def test_problems(entry, problem):
    report = _report("0.11.2", entry)
    assert pages.problem(report["cases"][0]) == problem
    name = "toy/gram N512 chunk=64 warps=4 stages=1, jax 0.11.2"
    assert pages.problems(report) == ([f"{name}: {problem}"] if problem else [])


def test_spills_of_other_variants_and_small_ones_on_request_are_no_problem():
    assert pages.problems(_report("0.11.2", _entry(toy.case(toy.Variant()), stack=40))) == []
    assert pages.problems(_report("0.11.2", _entry(stack=40)), spill=40) == []


@pytest.mark.parametrize(
    ("stack", "slots", "reason"),
    [
        (0, 171, "2 of 114 instructions; without +50% issue slots (chunk=64 warps=8 stages=1)"),
        (8, 171, "2 of 114 instructions; so do all 1 others that were compiled"),
        (0, 114, ""),
    ],
)
def test_a_spill_has_a_reason_if_what_spills_nothing_issues_more(stack, slots, reason):
    loop = replace(RESOURCES.loop, issue_slots=slots)
    other = _entry(toy.case(toy.Variant(warps=8)), stack=stack, loop=loop)
    report = _report("0.11.2", _entry(stack=40), other)
    assert pages.reason(report["cases"][0], report) == reason
    assert len(pages.problems(report)) == (0 if reason else 1)
    assert f"| {reason} |" in pages.as_markdown([report])


@pytest.mark.parametrize("loop", [None, replace(RESOURCES.loop, local=0)])
def test_a_spill_outside_of_the_main_loop_needs_no_other_variant(loop):
    report = _report("0.11.2", _entry(stack=40, loop=loop))
    assert pages.reason(report["cases"][0], report) == "once per program, outside of the main loop"
    assert pages.problems(report) == []


def test_kernels_that_run_on_request_only_may_spill_but_are_named():
    report = _report("0.11.2", _entry(replace(toy.case(), on_request=True), stack=40), _entry())
    assert pages.problems(report) == []
    page = pages.as_markdown([report])
    assert "none of the 1 variants that calls get spill registers. Problems without a reason: none." in page
    assert page.endswith("- toy/gram N512, jax 0.11.2: spills 40 bytes per thread\n")


def test_rows_name_the_kernels_of_a_case_that_runs_several():
    entry = Entry(toy.case(), (RESOURCES, replace(RESOURCES, kernel="sum", loop=None)))
    headings = [heading for heading, _, _ in pages.COLUMNS]
    first, second = pages.rows_of(inspect.as_dict(entry), headings)
    assert first[0] == "toy/gram N512: gram"
    assert second[0].endswith(": sum")
    assert second[-1] == "-"
    assert len(first) == 1 + len(headings)


def test_versions_stand_side_by_side():
    reports = [_report("0.11.2", _entry(stack=8)), _report("0.12.0", _entry(), _entry(toy.case(length=64)))]
    both, one = (line for line in pages.as_markdown(reports).splitlines() if line.startswith("| toy/gram"))
    assert both == (
        "| toy/gram N512 | chunk=64 warps=4 stages=1 | 68 | 8 | 0/0 | 16.0 | 7 | 114 | 128 "
        "| 68 | 0 | 0/0 | 16.0 | 7 | 114 | 128 |  |"
    )
    assert one.startswith("| toy/gram N64 | chunk=64 warps=4 stages=1 |  |  |  |  |  |  |  | 68 | 0 |")


def test_variants_are_compared_over_the_same_tokens_and_values():
    wide, narrow = (
        taylor_cases.case("dq", 16, 112, "bfloat16", variant=Variant(chunk, 32, value_tile, 4))
        for chunk, value_tile in ((64, 64), (32, 16))
    )
    assert [case.rounds for case in (wide, narrow)] == [2, 14]


def test_tables_of_a_page_are_rewritten_between_their_markers(tmp_path):
    kernels = ("key_sums", "outputs", "query_sums", "dq", "dk", "dv")
    cases = [taylor_cases.case(kernel, 16, 64, "bfloat16") for kernel in kernels]
    report = _report("0.11.2", *(_entry(case, stack=16) for case in cases))
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- expected -->\nold\n<!-- /expected -->\nafter\n")
    for _ in range(2):
        pages.update(page, [report])
        before, start, _, _, *rows, end, after = page.read_text().splitlines()
        assert (before, start, end, after) == ("before", "<!-- expected -->", "<!-- /expected -->", "after")
        assert rows[1] == "| `outputs` | 0.11.2 | 68 | 16 | 7 | 114 | 128 | 0.07 | 0.1 |"
        assert len(rows) == len(kernels)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no table", "none of the markers <!-- expected --> ... <!-- /expected -->, <!-- hopper -->"),
        ("<!-- expected -->\nno end", "none of the markers"),
        ("<!-- hopper -->\n<!-- /hopper -->", "jax 0.11.2 has no taylor_attention/outputs K16 V64 bfloat16"),
    ],
)
def test_pages_that_cannot_be_updated_are_errors(tmp_path, text, message):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ValueError, match=message):
        pages.update(page, [_report("0.11.2", _entry())])
    assert page.read_text() == text


@pytest.fixture
def toys(monkeypatch):
    """The catalogue is two toys, and no compiler runs."""
    cases = [toy.case(), toy.case(toy.Variant(warps=8))]
    monkeypatch.setattr(catalog, "cases", lambda match="": [case for case in cases if match in case.name])
    monkeypatch.setattr(catalog, "on_hopper", lambda match="": [])
    monkeypatch.setattr(catalog, "candidates", lambda case: [case, toy.case(toy.Variant(warps=2))])
    monkeypatch.setattr(catalog, "alternatives", lambda case: [toy.case(toy.Variant(warps=2))])
    monkeypatch.setattr(compile_offline, "compiler", lambda: "xla")
    monkeypatch.setattr(
        inspect, "resources", lambda case, used: [replace(RESOURCES, warps=case.variant.warps)]
    )
    return cases


def test_reports_are_written(toys, tmp_path, capsys):
    files = tmp_path / "report.json", tmp_path / "report.md"
    assert _run("--json", str(files[0]), "--markdown", str(files[1])) == 0
    report = json.loads(files[0].read_text())
    assert report["toolchain"]["target"] == "sm_90a"
    assert report["toolchain"]["ptxas"] == "12.9.86"
    assert [case["kernels"][0]["warps"] for case in report["cases"]] == [4, 8]
    assert report["cases"][0]["kernels"][0]["loop"]["issue_slots"] == 114
    assert "| toy/gram N512 | chunk=64 warps=4 stages=1 | 68 | 0 | 0/0 | 16.0 | 7 |" in files[1].read_text()
    assert "toy/gram" in capsys.readouterr().out


def test_a_default_that_spills_gives_status_1_unless_there_is_a_reason(toys, monkeypatch, capsys, tmp_path):
    def resources(case: Case, used: object) -> list[Resources]:
        loop = replace(RESOURCES.loop, issue_slots=120 if case.variant.warps == 2 else 114)
        return [replace(RESOURCES, stack=8 if case.default else 0, loop=loop)]

    monkeypatch.setattr(inspect, "resources", resources)
    flags = ["--defaults", "--json", str(tmp_path / "report.json")]
    assert _run(*flags) == 1
    assert "spills 8 bytes per thread" in capsys.readouterr().err
    assert _run(*flags, "--spill", "8") == 0
    assert _run(*flags, "--explain") == 0
    assert _run("--compare", flags[-1], "--markdown", str(tmp_path / "report.md")) == 0
    assert (
        "| 2 of 114 instructions; without +5% issue slots (chunk=64 warps=2 stages=1) |"
        in (tmp_path / "report.md").read_text()
    )


def test_what_does_not_compile_is_reported_and_the_rest_compiled(toys, monkeypatch, capsys):
    def resources(case: Case, used: object) -> list[Resources]:
        if case.variant.warps == 8:
            raise RuntimeError("too large\nfor a reason")
        return [RESOURCES]

    monkeypatch.setattr(inspect, "resources", resources)
    assert _run() == 0, "the default compiles"
    captured = capsys.readouterr()
    assert "RuntimeError: too large" in captured.err
    assert "fails" in captured.out


@pytest.mark.parametrize(
    ("options", "warps"),
    [
        (inspect.Inspect(), [4, 8]),
        (inspect.Inspect(defaults=True), [4]),
        (inspect.Inspect(all=True), [4, 8, 2]),
    ],
)
def test_flags_choose_variants(toys, options, warps):
    assert [case.variant.warps for case in inspect.choose(options)] == warps


def test_block_sizes_are_those_of_an_h200():
    case, *_ = inspect.choose(inspect.Inspect(match="attention/dv K8 V64 bfloat16"))
    assert case.variant.stages == 3, "elsewhere the kernel loads nothing ahead"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (inspect.Inspect(match="nothing"), "--match 'nothing': no such case"),
        (inspect.Inspect(all=True, defaults=True), "--all and --defaults"),
    ],
)
def test_flags_that_choose_nothing_are_errors(toys, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        inspect.choose(options)


def test_reports_are_compared_or_compiled():
    with pytest.raises(ValueError, match="--compare and --json: expected one of them"):
        _run("--compare", "a.json", "--json", "b.json")


DUMP = """\
001: kCustomKernel [source | sink] gram grid: [8, 1, 1] threads: [128, 1, 1]  shared_memory: 16384 bytes
002: kKernel wrapped_add grid: [8, 1, 1] threads: [128, 1, 1]  shared_memory: 0 bytes
"""


def test_shared_memory_of_a_compiled_program(tmp_path):
    (tmp_path / "module_0001.jit_f.thunk_sequence.txt").write_text(DUMP)
    assert xla_report._shared(tmp_path) == {"gram": 16384, "wrapped_add": 0}


def test_the_assembler_that_keeps_its_input(tmp_path):
    """XLA runs it; here the shell does."""
    assembler, source = tmp_path / "an assembler", tmp_path / "source"
    assembler.write_text('#!/bin/sh\necho "$@"\n')
    assembler.chmod(0o755)
    source.write_text(".visible .entry gram(\n)")
    tool = xla_report._write_assembler(tmp_path, str(assembler))
    assert subprocess.run([tool, "--version"], capture_output=True, text=True).stdout == "--version\n"
    assert xla_report._sources(tmp_path) == {}
    done = subprocess.run([tool, source, "-o", "x"], capture_output=True, text=True)
    assert done.stdout == f"{source} -o x\n"
    assert xla_report._sources(tmp_path) == {"gram": ".visible .entry gram(\n)"}


def test_missing_wheels_are_named_with_the_command_that_installs_them(monkeypatch):
    find_spec = importlib.util.find_spec
    missing = {"triton", *topology.PLUGINS}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in missing else find_spec(name)
    )
    for call in (compile_offline.compiler, lambda: topology.topology(7)):  # 7: none is cached
        with pytest.raises(ImportError, match=r"pip install 'based-jax\[inspect\]'"):
            call()


def test_an_old_assembler_is_passed_over(monkeypatch, tmp_path):
    tools = []
    for name, text, status in [
        ("old", "Unsupported .version 8.8; current version is '8.0'", 1),
        ("new", "", 0),
    ]:
        tools.append(tmp_path / name)
        tools[-1].write_text(f'#!/bin/sh\necho "{text}" >&2\necho used {name} >&2\nexit {status}\n')
        tools[-1].chmod(0o755)
    monkeypatch.setattr(compile_offline, "_programs", lambda name, used: map(str, tools))
    report, tool = compile_offline._assemble(tmp_path / "a", tmp_path / "b", "xla")
    assert report.strip() == "used new"
    assert tool == str(tools[1])
    monkeypatch.setattr(compile_offline, "_programs", lambda name, used: map(str, tools[:1]))
    with pytest.raises(ImportError, match=r"no ptxas that is new enough .*Unsupported .version 8.8"):
        compile_offline._assemble(tmp_path / "a", tmp_path / "b", "xla")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--registers"], "Unrecognized options: --registers"),
        (["--devices", "0"], "--devices 0: expected 1 or more"),
    ],
)
def test_wrong_flags_are_one_line_and_status_2(flags, message, capsys):
    done = run_here(PROGRAM, main, ["inspect", *flags], capsys)
    assert done.status == 2
    prog, _, found = _message(done.err).partition(": ")
    assert prog in (PROGRAM, f"{PROGRAM} inspect")
    assert found == message


def test_help(capsys):
    done = run_here(PROGRAM, main, ["inspect", "--help"], capsys)
    assert done.status == 0
    flags = ("--match", "--json", "--markdown", "--compare", "--devices", "--defaults", "--explain")
    assert all(flag in done.out for flag in flags)


@pytest.mark.skipif(HAS_COMPILER, reason="the wheels are here")
def test_the_command_without_wheels_is_one_line_and_status_2(capsys):
    done = run_here(PROGRAM, main, ["inspect"], capsys)
    assert done.status == 2
    assert re.fullmatch(r"python -m benchmarks: .*pip install 'based-jax\[inspect\]'.*\n", done.err)


@needs_compiler
@pytest.mark.parametrize("warps", [4, 8])
def test_numbers_of_a_compiled_kernel(warps):
    case = toy.case(toy.Variant(warps=warps))
    (found,) = inspect.inspect(case, compile_offline.compiler()).kernels
    assert (found.kernel, found.warps) == ("gram", warps)
    assert 16 <= found.registers <= 255
    assert found.spill_stores == found.spill_loads == found.stack == 0
    assert 8192 <= found.shared <= pages.SHARED_LIMIT
    assert found.blocks_per_sm >= 1
    assert found.wgmma == 4, "64 tokens in steps of 16"
    if found.loop is not None:
        assert found.loop.tensor_cycles == 4 * 64 // 2
        assert 20 <= found.loop.instructions <= 1000


@needs_compiler
def test_a_kernel_that_needs_too_many_registers_spills():
    """The report can be bad: one warp cannot hold a 64 x 64 sum and its operands."""
    (found,) = inspect.inspect(toy.case(toy.Variant(warps=1)), compile_offline.compiler()).kernels
    assert found.registers == 255
    assert found.spill_stores > 0


@needs_compiler
def test_the_command_compiles_a_case_of_the_catalogue(tmp_path):
    name = next(case for case in catalog.cases() if case.op == "taylor_step").name
    done = run_module("benchmarks", "inspect", "--match", name, "--json", str(tmp_path / "report.json"))
    assert done.returncode in (0, 1), done.stderr
    (case,) = json.loads((tmp_path / "report.json").read_text())["cases"]
    (kernel,) = case["kernels"]
    assert kernel.keys() == {field.name for field in dataclasses.fields(Resources)}
    assert "taylor_step" in done.stdout


@needs_plugin
def test_the_decoding_steps_need_no_collective_on_8_gpus():
    from pallas_kernels import sharded

    topology.use_cpu()
    mesh = sharded.mesh(topology.topology(8))
    for call in sharded.calls(batch=8, heads=4, length=64):
        if "step" in call.name:
            compiled = topology.compile_program(call.function, *call.sharded(mesh))
            assert topology.collectives(compiled.as_text() or "") == []
