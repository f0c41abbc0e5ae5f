"""What is inside the programs: batches, dtypes, limits; and what cannot be exported."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import based_jax as bj
from based_jax.export import Exported, Plan, export_model, export_programs, programs
from based_jax.models.config import MixerSpec
from based_jax.testing.laws import QUICKLY
from tests.export.conftest import PLAN, unchecked
from tests.generate.tiny import make_tiny
from tests.tolerances import FLOAT32, assert_close


def test_layers_that_need_the_number_of_rows(monkeypatch):
    tiny = make_tiny("C")
    monkeypatch.setattr(programs._Functions, "init", lambda _, rows: {"state": jnp.zeros(int(rows.shape[0]))})
    with pytest.raises(ValueError, match=r"^batch_size = None: expected a number .--batch-size. for this"):
        unchecked(export_programs, tiny.model, tiny.params, PLAN)


MIXED = {
    "H": MixerSpec("hyper_attention", {"num_heads": 2, "left": 3}),
    "L": MixerSpec("selective_lookups", {"num_heads": 2}),
    "S": MixerSpec("selected_attention", {"num_heads": 2, "share": 0.5}),
    "B": MixerSpec("conv_basis", {"num_heads": 2}),
}


def test_one_program_of_a_forward_serves_any_batch():
    """As users export it themselves, without states; learned positions and masks among what is traced."""
    tiny = make_tiny("HLSB", mixers=MIXED, max_positions=24)
    rows = export.symbolic_shape("b")[0]
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tiny.params)
    tokens, mask = (jax.ShapeDtypeStruct((rows, 24), dtype) for dtype in (jnp.int32, jnp.bool_))

    def forward(params, tokens, mask):
        return tiny.model.apply(params, tokens, mask=mask)[0]

    made = unchecked(export.export(jax.jit(forward)), shapes, tokens, mask)
    texts = np.arange(72).reshape(3, 24) * 7 % 50
    real = np.arange(24) < np.array([[24], [5], [13]])
    arguments = tiny.params, texts.astype(np.int32), real
    found, expected = (jax.jit(f, compiler_options=QUICKLY)(*arguments) for f in (made.call, forward))
    assert_close(found, expected, FLOAT32)
    assert jax.eval_shape(made.call, tiny.params, *(x[:1] for x in arguments[1:])).shape[0] == 1


@pytest.mark.slow
def test_continuing_any_batch():
    """The blocks of these layers, their lists of pairs and their running sums are as large as any batch."""
    tiny = make_tiny("HLSB", mixers=MIXED)
    exported = unchecked(export_programs, tiny.model, tiny.params, PLAN).exported
    assert {str(aval.shape[0]) for aval in exported["decode"].out_avals} == {"b"}


def test_float64_is_refused():
    tiny = make_tiny("C")
    model = bj.LanguageModel(tiny.model.config.replace(dtype="float64"))
    with pytest.raises(ValueError, match=r"^dtype = 'float64': expected one of"):
        export_programs(model, tiny.params, PLAN)


def test_wrong_plans():
    for plan, message in [
        ({"platforms": ()}, r"^platforms = \(\): expected at least one"),
        ({"platforms": ("gpu",)}, "^platforms = 'gpu': expected one of 'cpu', 'cuda'"),
        ({"platforms": ("cpu", "cpu")}, "^platforms = .*: expected each once"),
        ({"batch_size": 0}, "^batch_size = 0: expected an integer, at least 1"),
        ({"prefill_chunk": 0}, "^prefill_chunk = 0: expected an integer"),
        ({"decode_chunk": True}, "^decode_chunk = True: expected an integer"),
        ({"max_length": 1.5}, "^max_length = 1.5: expected an integer"),
    ]:
        with pytest.raises(ValueError, match=message):
            Plan(**plan)
    assert type(Plan(prefill_chunk=np.int64(8)).prefill_chunk) is int  # the manifest is JSON


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in bj.mixers.names() if bj.mixers.info(name).stateful])
def test_every_mixer(name, tmp_path):
    """Exported for any batch, its tokens are those of `generate`."""
    tiny = make_tiny("X", mixers={"X": MixerSpec(name)})
    plan = Plan(("cpu", "cuda"), max_length=64, prefill_chunk=8)
    unchecked(export_model, tmp_path, tiny.model, tiny.params, plan)
    prompts = [[1, 2, 3], list(range(10)), [7]]
    expected = bj.generate(tiny.model, tiny.params, prompts, 8, prefill_chunk=8)
    assert Exported.load(tmp_path).generate(prompts, 8) == expected.tolist()
