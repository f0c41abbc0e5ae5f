"""Public names are imported on first use: what a fresh process has loaded by then."""

import importlib
import inspect

import pytest

from based_jax import ops
from tests.subprocesses import run_python

PROGRAM = """
import sys
import based_jax.data.tokenizers  # text is encoded without jax

loaded = {"jax", "flax", "grain"} & {*sys.modules}
assert not loaded, loaded
assert dir(based_jax) == sorted(based_jax.__all__)
from based_jax.generate import loop  # before anything uses the function of the package's name

assert based_jax.generate is loop.generate
assert based_jax.LanguageModel.__name__ == "LanguageModel"
assert "grain" not in sys.modules
based_jax.data.train_iterator
assert "grain" in sys.modules
"""


def test_public_names_of_ops_are_no_modules_and_no_helpers():
    assert {"taylor_attention", "conv_decompose", "register"} < {*dir(ops)}
    assert not [name for name in dir(ops) if name.startswith("_") or inspect.ismodule(getattr(ops, name))]


@pytest.mark.release
def test_a_fresh_process_loads_what_it_uses():
    run_python(PROGRAM)


@pytest.mark.parametrize("package", ["based_jax", "based_jax.data", "based_jax.generate"])
def test_every_listed_name_is_found_and_others_are_not(package):
    module = importlib.import_module(package)
    assert [name for name in dir(module) if not hasattr(module, name)] == []
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'generated'"):
        _ = module.generated
