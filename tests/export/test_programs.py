"""What is inside the programs: kernels, batches, dtypes, limits; and what cannot be exported."""

import pytest
from jax import export

import based_jax as bj
from based_jax.export import Exported, Plan, export_model, export_programs
from based_jax.export.programs import KERNEL_CALL
from based_jax.models.config import MixerSpec
from tests.export.conftest import PLAN, unchecked
from tests.generate.tiny import make_tiny

FUSED = {
    "L": MixerSpec("linear_attention", {"num_heads": 2, "feature_dim": 4}),
    "S": MixerSpec("sliding_window", {"num_heads": 2, "left": 3}),
}
ON_GPU = Plan(("cuda",), kernels="pallas", batch_size=2, prefill_chunk=8, decode_chunk=4)


@pytest.mark.release
def test_kernels_are_inside_and_named(tmp_path):
    """A step has Taylor attention's and the window's, prefill has Taylor attention's alone."""
    tiny = make_tiny("LS", mixers=FUSED)
    unchecked(export_model, tmp_path, tiny.model, tiny.params, ON_GPU)
    calls = {}
    for path in tmp_path.glob("*.jaxexport"):
        program = export.deserialize(bytearray(path.read_bytes()))
        assert program.platforms == ("cuda",)
        calls[path.stem] = program.mlir_module().count(KERNEL_CALL)
    assert calls == {"init": 0, "prefill": 1, "decode": 2, "extend": 2}
    assert f'"custom_call:{KERNEL_CALL}": "the fused kernels are' in (tmp_path / "manifest.json").read_text()
    with pytest.raises(ValueError, match="exported for cuda: expected cpu, where this process runs"):
        Exported.load(tmp_path)


def test_kernels_that_no_layer_uses():
    tiny = make_tiny("A")
    with pytest.raises(
        ValueError, match=r"^kernels = 'pallas': expected xla, as no layer of this model uses"
    ):
        unchecked(export_programs, tiny.model, tiny.params, ON_GPU)


def test_layers_that_need_the_number_of_rows():
    tiny = make_tiny("X", mixers={"X": MixerSpec("hyper_attention")})
    with pytest.raises(
        ValueError, match=r"^batch_size = None: expected a number .--batch-size. for this model, which"
    ):
        unchecked(export_programs, tiny.model, tiny.params, PLAN)


def test_float64_is_refused():
    tiny = make_tiny("C")
    model = bj.LanguageModel(tiny.model.config.replace(dtype="float64"))
    with pytest.raises(ValueError, match=r"^dtype = 'float64': expected one of"):
        export_programs(model, tiny.params, PLAN)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"platforms": ()}, r"^platforms = \(\): expected at least one"),
        ({"platforms": ("gpu",)}, "^platforms = 'gpu': expected one of 'cpu', 'cuda'"),
        ({"platforms": ("cpu", "cpu")}, "^platforms = .*: expected each once"),
        ({"kernels": "pallas", "batch_size": 2}, "^platforms = .*: expected cuda alone with kernels pallas"),
        (
            {"kernels": "pallas", "platforms": ("cuda",)},
            "^batch_size = None: expected a number .--batch-size. with kernels",
        ),
        ({"kernels": "triton"}, "^kernels = 'triton': expected one of"),
        ({"weights": "within"}, "^weights = 'within': expected one of"),
        ({"batch_size": 0}, "^batch_size = 0: expected an integer, at least 1"),
        ({"prefill_chunk": 0}, "^prefill_chunk = 0: expected an integer"),
        ({"decode_chunk": True}, "^decode_chunk = True: expected an integer"),
        ({"max_length": 1.5}, "^max_length = 1.5: expected an integer"),
    ],
    ids=str,
)
def test_wrong_plans(plan, message):
    with pytest.raises(ValueError, match=message):
        Plan(**plan)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in bj.mixers.names() if bj.mixers.info(name).stateful])
def test_every_mixer(name, tmp_path):
    """Exported, its tokens are those of `generate`; the batch is fixed where it has to be."""
    tiny = make_tiny("X", mixers={"X": MixerSpec(name)})
    fixed = name == "hyper_attention"  # whose blocks are as large as the number of rows allows
    plan = Plan(("cpu", "cuda"), batch_size=3 if fixed else None, max_length=64, prefill_chunk=8)
    unchecked(export_model, tmp_path, tiny.model, tiny.params, plan)
    prompts = [[1, 2, 3], list(range(10)), [7]]
    expected = bj.generate(tiny.model, tiny.params, prompts, 8, prefill_chunk=8)
    assert Exported.load(tmp_path).generate(prompts, 8) == expected.tolist()
