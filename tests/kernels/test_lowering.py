"""Every kernel on every realistic shape is lowered for CUDA: what the kernel compiler lacks shows here."""

import importlib
import re

import jax
import jax.numpy as jnp
import pytest

from benchmarks.gpu.cases import catalog
from pallas_kernels import devices, offline, tuning
from pallas_kernels.launch import interpreted
from tests.kernels.toy import run_whole
from tests.marks import slow_but

CASES = catalog.cases()
KERNEL = "__gpu$xla.gpu.triton"
IN_PLACE = {"taylor_step/step": 2, "window_step/step": 2, "conv_step/step": 1, "row_products/conv": 1}
"""Results of a kernel that take the memory of arguments."""
OVERWRITTEN = ("taylor_step/step", "conv_step/step", "row_products/conv")
"""Those that store where they have loaded; `window_step` stores a slot that it does not load."""


def name_of(case: catalog.Case) -> str:
    return f"{case.op}/{case.kernel}"


ESSENTIAL = list({(case.op, case.kernel, "channels" in case.shape): case for case in CASES}.values())
"""One shape of each kernel, for `make check`."""


@pytest.mark.parametrize(
    "case",
    slow_but(ESSENTIAL, CASES),
    ids=lambda case: case.name,
)
def test_every_case_is_lowered_to_a_kernel(case):
    text = offline.lower(case.function, *case.arguments).as_text()
    assert KERNEL in text
    assert text.count("output_operand_alias<") == IN_PLACE.get(name_of(case), 0)


@pytest.mark.release
@pytest.mark.parametrize("case", ESSENTIAL, ids=lambda case: case.name)
def test_indices_keep_32_bits(case):
    """Under `jax_enable_x64` a Python number has 64, and indices of programs have not."""
    with jax.enable_x64(True):
        jax.eval_shape(case.function, *case.arguments)
        with interpreted():
            jax.eval_shape(lambda *arrays: case.function(*arrays), *case.arguments)


@pytest.mark.parametrize("case", [case for case in ESSENTIAL if name_of(case) in OVERWRITTEN], ids=name_of)
def test_what_is_overwritten_was_loaded_by_all_threads(case):
    """Warps share the numbers of a small block: all load them, one stores. The interpreter has one thread."""
    with offline.lowering_for():
        order = "".join(accesses(jax.make_jaxpr(case.function)(*case.arguments).jaxpr))
    order = re.sub("(.)\\1+", "\\1", order)  # runs of loads l, stores s and barriers |
    assert "|s" in order
    assert order.removesuffix("ls").count("ls") == 0  # the outputs come last, in memory of their own


def accesses(program):
    """Yield a letter for each access of a kernel to memory, and a bar for each barrier."""
    letters = {"get": "l", "load": "l", "swap": "s", "debug_barrier": "|"}
    for eqn in program.eqns:
        name = eqn.primitive.name.removeprefix("masked_").removesuffix("_p")  # jax 0.10 has debug_barrier_p
        if name in letters:
            yield letters[name]
        for value in jax.tree.leaves(eqn.params):  # a conditional has several programs
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from accesses(inner)


def test_case_names_are_unique():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)


def _twice(x_ref, out_ref):
    out_ref[...] = 2 * x_ref[...]


def _joined(x_ref, out_ref):
    out_ref[...] = jnp.concatenate([x_ref[...], x_ref[...]])


def _sliced(x_ref, out_ref):
    out_ref[...] = x_ref[...][:32]


@pytest.mark.parametrize(
    ("body", "size_in", "size_out"), [(_twice, 48, 48), (_joined, 32, 64), (_sliced, 64, 32)]
)
def test_what_the_kernel_compiler_lacks_is_refused(body, size_in, size_out):
    """The check can fail: these are the usual mistakes, and the interpreter accepts them all."""
    x = jax.ShapeDtypeStruct((size_in,), jnp.float32)
    with pytest.raises((ValueError, NotImplementedError)):
        offline.lower(lambda x: run_whole(body, x, size=(size_out,)), x)


def test_a_sound_kernel_is_not_refused():
    x = jax.ShapeDtypeStruct((64,), jnp.float32)
    assert KERNEL in offline.lower(lambda x: run_whole(_twice, x, size=(64,)), x).as_text()


@pytest.mark.parametrize("op", catalog.OPS)
def test_every_row_of_the_tuning_tables_loads_and_is_in_the_catalogue(op):
    rows = tuning.table(op)
    kind = importlib.import_module(f"pallas_kernels.{op}").Variant
    for row in rows:
        assert row.keys() - {"shared"} == {"device", "when", "variant"}
        kind(**row["variant"])
    assert [row for row in rows if row["device"] == "any"] == rows[-sum(r["device"] == "any" for r in rows) :]

    cases = [*CASES, *catalog.at_highest_precision()]
    used = {
        tuning.row_number(op, capability=device, shared_memory=shared, **case.facts)
        for case in cases
        if case.op == op and isinstance(case.variant, kind)
        for device in {row["device"] for row in rows}
        for shared in {family.shared for family in devices.FAMILIES}
    }
    assert used == set(range(len(rows))), "a row that no case in the catalogue reaches"
