"""Mixers of other packages: registered by a decorator or found by their entry point."""

import importlib
import sys

import chex
import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

import based_jax as bj
from based_jax.mixers import registry
from based_jax.testing.arrays import normals

MODULE = '''
from based_jax import mixers


class Outside(mixers.ShortConv):
    """A short convolution from elsewhere."""

    kernel_size: int = 2
'''


@pytest.fixture
def registered(monkeypatch):
    """What a test registers is forgotten."""
    monkeypatch.setattr(registry.MIXERS, "entries", dict(registry.MIXERS.entries))
    yield
    vars(registry.MIXERS).pop("installed", None)


def test_a_registered_class_has_a_name(registered):
    @bj.mixers.register("of_a_notebook")
    class OfANotebook(bj.mixers.ShortConv):
        """Anything."""

        taps: int = 4

    assert "of_a_notebook" in bj.mixers.names()
    assert bj.mixers.make("of_a_notebook", d_model=8, taps=5) == OfANotebook(8, taps=5)
    assert bj.mixers.info("of_a_notebook").summary == "Anything."
    assert bj.mixers.options("of_a_notebook")["taps"].default == 4
    config = bj.presets.get("based-tiny").with_mixer("of_a_notebook", taps=6)
    assert bj.ModelConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ValueError, match=r"option of of_a_notebook = 'tap': .* did you mean 'taps'"):
        config.with_mixer("of_a_notebook", tap=6)


def test_a_class_may_be_registered_again_after_a_change(registered):
    def define(taps):
        class Again(bj.mixers.ShortConv):
            kernel_size: int = taps

        return bj.mixers.register("again")(Again)

    first, second = define(2), define(3)
    assert first is not second
    assert bj.mixers.make("again", d_model=8).kernel_size == 3


@pytest.mark.release
def test_what_was_made_from_the_first_definition_is_not_kept(registered):
    def define(factor, taps):
        class Scaled(bj.mixers.ShortConv):
            kernel_size: int = taps

            def mix(self, x, state, context):
                y, state = super().mix(x, state, context)
                return factor * y, state

        bj.mixers.register("scaled")(Scaled)

    tokens = jnp.arange(8)[None]
    define(1.0, 2)
    config = bj.presets.get("based-tiny").with_mixer("scaled").replace(schedule="A")
    model, size = bj.LanguageModel(config), bj.param_count(config)
    params = normals(model.init, tokens)
    first = bj.generate(model, params, tokens, max_new_tokens=8)
    define(-9.0, 2)
    second = bj.generate(model, params, tokens, max_new_tokens=8)
    assert second[0, 0] == model.apply(params, tokens)[0][0, -1, : config.vocab_size].argmax()
    assert (first != second).any()
    define(1.0, 3)
    assert bj.param_count(config) > size


@pytest.fixture
def installed(tmp_path, monkeypatch, registered):
    """Install a package by its files, as pip would, with these entry points."""

    def install(points: str) -> None:
        (tmp_path / "outside_mixers.py").write_text(MODULE)
        notes = tmp_path / "outside_mixers-1.0.dist-info"
        notes.mkdir()
        (notes / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-mixers\nVersion: 1.0\n")
        (notes / "entry_points.txt").write_text(f"[based_jax.mixers]\n{points}\n")
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()
        vars(registry.MIXERS).pop("installed", None)

    yield install
    sys.modules.pop("outside_mixers", None)


def test_an_installed_package_is_imported_when_its_mixer_is_needed(installed):
    installed("outside = outside_mixers:Outside")
    assert "outside" in bj.mixers.names()
    assert "outside_mixers" not in sys.modules
    mixer = bj.mixers.make("outside", d_model=4)
    assert mixer.kernel_size == 2
    assert mixer.init_state(3).inputs.shape == (3, 1, 4)
    x = jax.ShapeDtypeStruct((1, 5, 4), jnp.float32)
    (y, _), _ = jax.eval_shape(mixer.init_with_output, jax.random.key(0), x)
    assert y.shape == (1, 5, 4)


PATHS = """
import based_jax as bj
from based_jax.mixers import ShortConv


class HTTPConv2(ShortConv):
    pass


@bj.mixers.register("named_otherwise")
class Named(HTTPConv2):
    pass


class Hyena(HTTPConv2):
    pass
"""


def test_a_mixer_is_imported_by_the_path_of_its_module(tmp_path, monkeypatch, registered):
    """From the working directory, with the name that it has or gets; the module's own classes count."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "paths_of_mixers.py").write_text(PATHS)
    (tmp_path / "based.py").write_text(MODULE)
    (tmp_path / "no_code.py").write_text("int('a')")
    monkeypatch.chdir(tmp_path)
    assert bj.mixers.import_mixer("based") == "outside"
    assert bj.mixers.import_mixer("paths_of_mixers:HTTPConv2") == "http_conv2"
    assert bj.mixers.import_mixer("paths_of_mixers:Named") == "named_otherwise"
    assert bj.mixers.make("http_conv2", d_model=4).kernel_size == 3
    refused = {
        "paths_of_mixers": "paths_of_mixers:Class, where Class is one of HTTPConv2, Named, Hyena",
        "paths_of_mixers:Name": "where Class is one of .* did you mean 'Named'",
        "paths_of_mixers:Hyena": "name = 'hyena': expected a name that .* does not have",
        "json": "Class is one of its mixers, of which it has none",
        "no_code:Mixer": "mixer = 'no_code:Mixer': cannot import no_code: invalid literal",
        "./based.py:Outside": r"cannot import ./based\.py: ",
        "no_such_package.mixer": "cannot import no_such_package.mixer: No module named 'no_such_package'",
    }
    for path, message in refused.items():
        with pytest.raises(ValueError, match=message):
            bj.mixers.import_mixer(path)
    with pytest.raises(TypeError, match="expected a subclass of"):
        bj.mixers.import_mixer("json:JSONDecoder")
    for name in ("paths_of_mixers", "based"):
        sys.modules.pop(name)


def test_flaxs_transforms_of_a_mixers_class_are_no_mixers_of_ones_own():
    plain, x = bj.mixers.make("short_conv", d_model=2), jnp.ones((1, 3, 2))
    variables = plain.init(jax.random.key(0), x)
    lifted = nn.remat(nn.jit(type(plain)))(d_model=2)
    chex.assert_trees_all_equal(lifted.apply(variables, x), plain.apply(variables, x))
    with pytest.raises(TypeError, match="Own defines __call__: expected mix"):
        type("Own", (type(plain),), {"__call__": lambda self, x: x})


def test_a_package_that_cannot_be_imported_is_named(installed):
    installed("outside = outside_mixers:Missing")
    with pytest.raises(ValueError, match=r"mixer = 'outside': cannot import outside_mixers:Missing:"):
        bj.mixers.make("outside", d_model=4)


def test_what_cannot_be_registered_is_named(unchecked):
    for name in ["", "Mamba", "2d", "a-b", None]:
        with pytest.raises(ValueError, match=r"^name = .*: expected lower-case letters"):
            bj.mixers.register(name)
    mine = type("Mine", (bj.mixers.ShortConv,), {})
    with pytest.raises(ValueError, match=r"name = 'mamba': expected a name that .*Mamba does not have"):
        bj.mixers.register("mamba")(mine)
    with pytest.raises(TypeError, match=r"mixer 'x' = <class 'int'>: expected a subclass"):
        bj.mixers.register("x")(int)
