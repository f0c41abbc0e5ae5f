"""Whole models compiled for absent GPUs: costs against programs that are known by hand."""

import importlib.util
import json

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import based_jax as bj
from benchmarks.__main__ import main
from benchmarks.gpu.io_model import GPUS, Cost, Sizes, WindowSizes, kernel, window
from benchmarks.gpu.static import cost, hlo
from benchmarks.gpu.static.command import by_part, floor_with_cudnn, part_of
from benchmarks.gpu.static.cost import Work
from benchmarks.gpu.static.hlo import Shape
from benchmarks.gpu.static.resources import toolchain
from benchmarks.gpu.static.topology import PLUGINS, compile_for, use_cpu
from tests.floors import ROOT

needs_plugin = pytest.mark.skipif(
    not any(map(importlib.util.find_spec, PLUGINS)), reason="needs jax's CUDA plugin (extra `inspect`)"
)

LOOP = """HloModule known

%product (a: bf16[64,64], b: bf16[64,64]) -> bf16[64,64] {
  %a = bf16[64,64]{1,0} parameter(0)
  %b = bf16[64,64]{1,0} parameter(1)
  %dot.1 = bf16[64,64]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %tanh.1 = bf16[64,64]{1,0} tanh(%dot.1)
}

%slice (w: bf16[10,64,64], i: s32[]) -> bf16[1,64,64] {
  %w = bf16[10,64,64]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %one = bf16[1,64,64]{2,1,0} dynamic-slice(%w, %i, %zero, %zero), dynamic_slice_sizes={1,64,64}
}

%body (carry: (s32[], bf16[64,64], bf16[10,64,64])) -> (s32[], bf16[64,64], bf16[10,64,64]) {
  %carry = (s32[], bf16[64,64]{1,0}, bf16[10,64,64]{2,1,0}) parameter(0)
  %i = s32[] get-tuple-element(%carry), index=0
  %x = bf16[64,64]{1,0} get-tuple-element(%carry), index=1
  %w = bf16[10,64,64]{2,1,0} get-tuple-element(%carry), index=2
  %start = ((bf16[10,64,64]{2,1,0}, s32[]), bf16[1,64,64]{2,1,0}, u32[]) fusion-start(%w, %i), calls=%slice
  %done = bf16[1,64,64]{2,1,0} fusion-done(%start)
  %flat = bf16[64,64]{1,0} bitcast(%done)
  %y = bf16[64,64]{1,0} fusion(%x, %flat), kind=kCustom, calls=%product, metadata={op_name="jit(f)/mlp/dot"}
  ROOT %next = (s32[], bf16[64,64]{1,0}, bf16[10,64,64]{2,1,0}) tuple(%i, %y, %w)
}

%more (carry: (s32[], bf16[64,64], bf16[10,64,64])) -> pred[] {
  %carry = (s32[], bf16[64,64]{1,0}, bf16[10,64,64]{2,1,0}) parameter(0)
  ROOT %yes = pred[] constant(true)
}

ENTRY %main (x: bf16[64,64], w: bf16[10,64,64]) -> bf16[64,64] {
  %x = bf16[64,64]{1,0} parameter(0)
  %w = bf16[10,64,64]{2,1,0} parameter(1)
  %i = s32[] constant(0)
  %start = (s32[], bf16[64,64]{1,0}, /*index=2*/bf16[10,64,64]{2,1,0}) tuple(%i, %x, %w)
  %loop = (s32[], bf16[64,64]{1,0}, bf16[10,64,64]{2,1,0}) while(%start), condition=%more, body=%body, TURNS
  ROOT %y = bf16[64,64]{1,0} get-tuple-element(%loop), index=1
}
"""
"""Ten products of 64 x 64 matrices, each with its own of ten weights."""

TURNS = 'metadata={op_name="jit(f)/while"}, backend_config={"known_trip_count":{"n":"10"}}'

UPDATE = """HloModule known

%update (cache: f32[8,100], row: f32[1,100], at: s32[]) -> f32[8,100] {
  %cache = f32[8,100]{1,0} parameter(0)
  %row = f32[1,100]{1,0} parameter(1)
  %at = s32[] parameter(2)
  %zero = s32[] constant(0)
  ROOT %new = f32[8,100]{1,0} dynamic-update-slice(%cache, %row, %at, %zero)
}

ENTRY %main (cache: f32[8,100], row: f32[1,100], at: s32[]) -> f32[8,100] {
  %cache = f32[8,100]{1,0} parameter(0)
  %row = f32[1,100]{1,0} parameter(1)
  %at = s32[] parameter(2)
  %new = f32[8,100]{1,0} fusion(%cache, %row, %at), kind=kLoop, calls=%update
  ROOT %out = f32[8,100]{1,0} copy(%new)
}
"""
"""A row written into a cache in place, then a copy of the whole."""


def test_a_loop_counts_as_often_as_it_turns():
    matrix = 64 * 64 * 2
    sliced, product = cost.work(hlo.read(LOOP.replace("TURNS", TURNS)))
    assert (sliced.launches, sliced.flops) == (10, 0)
    assert sliced.bytes == 10 * (2 * matrix + 4), "a matrix in and out, and its number"
    assert (product.launches, product.flops, product.bytes) == (10, 10 * 2 * 64**3, 10 * 3 * matrix)
    assert sliced.scope == "jit(f)/while", "what has no scope has the loop's"
    once = cost.work(hlo.read(LOOP.replace("TURNS", TURNS.split(",")[0])))
    assert [each.launches for each in once] == [1, 1], "turns unknown"


def test_what_is_updated_in_place_is_not_read():
    update, copy = cost.work(hlo.read(UPDATE))
    assert update.bytes == 100 * 4 + 100 * 4 + 4, "the row in and out, and where"
    assert copy.bytes == 2 * 8 * 100 * 4


def test_what_is_made_in_a_fusion_is_written_whole():
    argument = "%cache = f32[8,100]{1,0} parameter(0)"
    made = argument.replace("%cache", "%given") + "\n  %cache = f32[8,100]{1,0} negate(%given)"
    text = UPDATE.replace(argument, made, 1)
    update, _ = cost.work(hlo.read(text))
    assert update.bytes == 2 * 8 * 100 * 4 + 100 * 4 + 4


@pytest.mark.parametrize(
    ("dtype", "size"), [("bf16", 2), ("f32", 4), ("pred", 1), ("s4", 0.5), ("f8e4m3fn", 1), ("token", 0)]
)
def test_bytes_of_dtypes(dtype, size):
    assert Shape(dtype, (6, 2)).bytes == 12 * size


def test_a_text_without_a_program_is_refused():
    with pytest.raises(ValueError, match="no ENTRY computation"):
        hlo.read("HloModule empty\n")


LAYER = "jit(step)/jvp(LanguageModel.hidden)/layers_"


@pytest.mark.parametrize(
    ("scope", "part"),
    [
        (f"{LAYER}1/mixer/mixer.mix/q/dot_general", "linear_attention, products with weights"),
        (f"{LAYER}1/mixer/mixer.mix/row_products/pallas_call", "linear_attention, products with weights"),
        (f"{LAYER}0/mixer/mixer.mix/conv_row_product/pallas_call", "gated_conv, products with weights"),
        (f"{LAYER}1/mixer/mixer.mix/taylor_attention/taylor_dk/pallas_call", "linear_attention"),
        (f"{LAYER}2/mixer/mixer.mix/softmax_attention/reduce_max", "sliding_window, softmax"),
        (f"{LAYER}0/mlp/out/dot_general", "MLP"),
        (f"{LAYER}0/norm1/rsqrt", "norms"),
        ("jit(step)/transpose(jvp(LanguageModel.hidden))/final_norm/rsqrt", "norms"),
        ("jit(step)/jvp(cross_entropy)/while/body/add", "cross-entropy"),
        ("jit(step)/optimizer/add", "optimizer"),
        ("jit(step)/jvp(LanguageModel.hidden)/jit(_take)/and", "embedding"),
        ("jit(make)/while/body/LanguageModel.unembed/dot_general", "output embedding"),
        ("", "other"),
    ],
)
def test_parts_are_told_by_scope(scope, part):
    assert part_of(scope, bj.presets.get("based-360m").replace(schedule="CLS")) == part


def test_kernels_have_formulas():
    q, v, state = (
        Shape("bf16", (4, 128, 2, 16)),
        Shape("bf16", (4, 128, 2, 64)),
        Shape("f32", (4, 2, 153, 64)),
    )
    for name in ("taylor_outputs/pallas_call", "taylor_outputs_mosaic/mpmd_map"):
        assert cost.kernel(f"x/{name}", [q, q, v]) == kernel("outputs", Sizes(4, 128, 2))
    token, value = Shape("bf16", (4, 2, 16)), Shape("bf16", (4, 2, 64))
    step = cost.kernel("x/taylor_step/pallas_call", [token, token, value, state])
    assert step is not None
    assert step.bytes > 2 * state.bytes, "the state is read and written"
    keys = Shape("bf16", (4, 64, 2, 64))
    ring = cost.kernel("x/window_step/pallas_call", [value, value, value, keys, keys])
    assert ring is not None
    assert 2 * keys.bytes < ring.bytes < 3 * keys.bytes, "most of it is only read"
    row, matrix, halves = Shape("bf16", (64,)), Shape("bf16", (32, 64)), Shape("bf16", (2, 16, 64))
    biases = [Shape("bf16", (32,))] * 2
    products = cost.kernel("x/row_products/pallas_call", [row, matrix, matrix, *biases])
    assert products == Cost(2 * (64 * 64 + 64 + 64), 2 * 64 * 64)
    gated = cost.kernel("x/gated_row_product/pallas_call", [row, halves])
    assert gated == Cost(2 * (64 * 32 + 64 + 16), 2 * 64 * 32)
    conv = [row, halves, Shape("bf16", (2, 16)), Shape("bf16", (3, 16))]
    assert cost.kernel("x/conv_row_product/pallas_call", conv) == gated + Cost(2 * 16 * (3 + 2 * 2), 0)
    q, k = Shape("bf16", (4, 128, 2, 3, 16)), Shape("bf16", (4, 128, 2, 16))
    short = cost.kernel("x/window_outputs_left15/pallas_call", [q, k, k])
    assert short == window("outputs", WindowSizes(4, 128, 6, 2, 15, 16, 16))
    assert cost.kernel("x/someone_elses/pallas_call", [q]) is None


def test_fused_attention_reads_and_writes_each_array_once():
    array = 2 * 3 * 64 * 4 * 16
    log_sum = 4 * 3 * 64 * 4
    forward = cost.fused_attention(3, 64, 4, 4, 16, trains=False)
    assert forward == Cost(4 * array + log_sum, 4 * 3 * 4 * 16 * sum(range(1, 65)))
    both = cost.fused_attention(3, 64, 4, 4, 16, trains=True)
    assert both == Cost(forward.bytes + 8 * array + log_sum, 3.5 * forward.flops)
    grouped = cost.fused_attention(3, 64, 4, 1, 16, trains=False)
    assert grouped.bytes == 2 * array + 2 * array // 4 + log_sum


def test_fused_attention_takes_the_place_of_the_softmax():
    """Of both layers; a kernel without a formula is counted, and little but the optimizer is left."""
    config = bj.presets.get("attn-360m").replace(schedule="AA")
    scope = "jit(step)/jvp(LanguageModel.hidden)/layers_{}/mixer/mixer.mix/softmax_attention/exp"
    works = [Work(scope.format(i), "", 2.4e9, 0, 3, False) for i in range(2)]
    works.append(Work("jit(step)/optimizer/add", "", 4.8e9, 0, 7, False))
    works.append(Work("jit(step)/strange", "", 0, 0, 1, False, is_known=False))
    works.append(Work("jit(step)/jvp(cross_entropy)/dot", "", 0, 989e9, 1, False))
    works.append(Work("jit(step)/jvp(cross_entropy)/dot", "", 0, 494e9, 1, True))
    rows = by_part(works, config, GPUS["H200"])
    found = {row["part"]: (row["launches"], row["floor_seconds"], row["unknown"]) for row in rows}
    assert found == {
        "attention, softmax": (6, 1e-3, 0),
        "optimizer": (7, 1e-3, 0),
        "cross-entropy": (2, 2e-3, 0),  # products, at both rates
        "other": (1, 0, 1),
    }
    given = rows, config, 2, 32
    assert floor_with_cudnn(*given, "train", GPUS["H200"]) == pytest.approx(3e-3, rel=0.01)
    assert floor_with_cudnn(*given, "decode", GPUS["H200"]) == pytest.approx(4e-3)


@needs_plugin
def test_compiled_programs_that_are_known_by_hand():
    use_cpu()

    def works(function, *shapes, dtype=jnp.bfloat16):
        arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
        return cost.work(hlo.read(compile_for("NVIDIA H200", function, *arguments).as_text() or ""))

    (product,) = works(jnp.matmul, (4096, 4096), (4096, 4096))
    assert (product.flops, product.bytes, product.launches) == (2 * 4096**3, 3 * 2 * 4096**2, 1)
    loop = works(lambda x, w: lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0], (64, 64), (10, 64, 64))
    assert sum(each.flops for each in loop) == 10 * 2 * 64**3
    (softmax,) = works(jax.nn.softmax, (1024, 4096), dtype=jnp.float32)
    assert softmax.bytes == 2 * 4 * 1024 * 4096


@needs_plugin
def test_the_command_compiles_a_small_model(tmp_path, capsys):
    flags = ["--presets", "based-tiny", "--schedule", "LS", "--batch", "2", "--length", "128"]
    flags += ["--decode-batches", "1", "--after", "64", "--programs", "train,prefill,decode"]
    assert main(["static", *flags, "--json", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["complete"]
    assert len(report["summary"]) == 3
    parts = {row["part"] for row in report["rows"]}
    assert {"MLP", "norms", "optimizer", "cross-entropy", "linear_attention"} <= parts
    assert not any(row["unknown"] for row in report["rows"])
    assert "cross-entropy" in capsys.readouterr().out


KEPT = ROOT / "benchmarks" / "results" / "static" / "h200.json"


@pytest.mark.slow
@needs_plugin
@pytest.mark.parametrize("preset", ["based-360m", "attn-360m", "mamba-360m"])
def test_headline_programs_take_no_more_than_kept(preset, tmp_path):
    """Within the twentieth by which choices of the same compiler may differ."""
    kept = json.loads(KEPT.read_text())
    versions = kept["settings"]["toolchain"]
    if toolchain() != versions:
        pytest.skip(f"the kept report is of {', '.join(map(' '.join, versions.items()))}")
    assert main(["static", "--presets", preset, "--json", str(tmp_path / "report.json")]) == 0
    for name, found in json.loads((tmp_path / "report.json").read_text())["summary"].items():
        for key in ("floor_seconds", "launches", "scratch_bytes"):
            assert found[key] <= 1.05 * kept["summary"][name][key], f"{name}: {key}"


def test_a_turn_of_the_longest_loop():
    (turn,) = (each for each in cost.turn(hlo.read(LOOP.replace("TURNS", TURNS))) if each.flops)
    assert (turn.launches, turn.flops) == (1, 2 * 64**3)
    with pytest.raises(LookupError, match="no loop"):
        cost.turn(hlo.read(UPDATE))
