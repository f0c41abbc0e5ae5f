"""`check_layer` accepts right layers, and names and shrinks the faults of others."""

import dataclasses
import functools
import math
import subprocess
import sys

import jax
import numpy as np
import pytest

from based_jax import mixers
from based_jax.testing.laws import QUICKLY, Runner
from based_jax.testing.layers import FEATURES, LAWS, Layer, check_layer
from tests.testing import toys

ALL = list(LAWS)


@pytest.mark.parametrize("make", toys.RIGHT)
def test_right_layers_pass(make):
    report = check_layer(make())
    report.raise_if_broken()
    assert report.of("holds") == [law for law in ALL if "gradient" not in law or make is toys.recurrence]


@pytest.mark.parametrize("fault", toys.FAULTS)
def test_faults_are_named_and_shrunk(fault):
    layer, expected = toys.FAULTS[fault]
    report = check_layer(layer)
    broken = {outcome.law: outcome for outcome in report.outcomes if outcome.status == "broken"}
    assert {law: sum(outcome.sizes) for law, outcome in broken.items()} == expected
    assert all(outcome.error > 100 * layer.tolerance for outcome in broken.values())
    with pytest.raises(AssertionError, match=f"^layer breaks {', '.join(expected)}\n"):
        report.raise_if_broken()


def test_a_report_has_a_line_for_each_law():
    report = check_layer(toys.convolution(keeps_documents=True), ["batch", "packing", "gradient packing"])
    head, holds, broken, unchecked = str(report).splitlines()
    assert head == "layer breaks packing"
    assert holds == "batch             holds        largest error 0.0e+00 of 20 inputs"
    assert broken.startswith("packing           broken       1 + 1 tokens (documents): ")
    assert broken.endswith(" of the largest value in the outputs, row 1, token 1")
    assert unchecked.split(maxsplit=4)[2:] == ["not", "checked", "the layer does not support gradient"]


def test_what_a_layer_does_not_support_is_not_checked():
    """Neither passed nor called: this layer takes nothing but x."""
    layer = Layer(lambda x: (x[:, ::-1], None), 2, causal=False)
    report = check_layer(layer)
    assert report.of("holds") == ["batch"]
    assert set(report.of("not checked")) == {*ALL} - {"batch"}
    one_step = dataclasses.replace(toys.recurrence(drops_state=True), supports=("step", "mask_left"))
    assert check_layer(one_step).of("broken") == []
    left = dataclasses.replace(toys.recurrence(decays_over_padding=True), supports=("step", "mask_left"))
    assert check_layer(left).of("broken") == []


def test_a_call_that_raises_or_returns_nan_breaks_the_law():
    def in_eights(x):
        if x.shape[1] % 8:
            raise RuntimeError("whole chunks only")
        return x, None

    outcome = check_layer(Layer(in_eights, 2), ["batch"]).outcomes[0]
    assert outcome.error == math.inf
    assert outcome.detail == "1 tokens (each row): a call raised RuntimeError: whole chunks only"
    report = check_layer(Layer(lambda x: (x[:, :1], None), 2), ["batch"])
    assert "ValueError: shape of y = (" in str(report)
    report = check_layer(Layer(lambda x: (np.where(len(x) == 2, np.nan, x), None), 2), ["batch"])
    assert report.of("broken") == ["batch"]


@pytest.mark.parametrize("chunk", [16, 33])
def test_faults_of_long_rows_are_found(chunk):
    """The smallest input has a token more than a chunk."""

    def forward(x):
        later = np.arange(x.shape[1])[:, None] >= chunk
        return x + later * np.roll(x, -1, axis=1), None

    outcome = check_layer(Layer(forward, 2), ["causality"]).outcomes[0]
    assert sum(outcome.sizes) == chunk + 2


def test_bad_arguments_are_named():
    for call, message in [
        (lambda: check_layer(toys.window(), ["no_such"]), r"laws = \['no_such'\]: expected names from split"),
        (lambda: check_layer(toys.window(), seed=-1), "seed = -1"),
        (lambda: check_layer(toys.window(), examples=0), "examples = 0"),
        (lambda: Layer(np.tanh, 0), "width = 0"),
        (lambda: Layer(np.tanh, 1, ["masks"]), r"supports = \['masks'\]: expected names from state"),
        (lambda: Layer(np.tanh, 1, ["step"]), "init_state = None: expected a function"),
        (lambda: Layer(np.tanh, 1, ["gradient"]), "gradient = None: expected a function"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.release
def test_neither_jax_nor_flax_is_needed():
    code = "import sys; from importlib import metadata\n"
    code += "sys.modules |= {'jax': None, 'jaxlib': None, 'flax': None}\n"
    code += "def version(name): raise metadata.PackageNotFoundError\n"
    code += "metadata.version = version\n"
    code += "from based_jax.testing import check_layer, Layer, layers\n"
    code += "check_layer(Layer(lambda x: (x, None), 1)).raise_if_broken()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


SUMS_OF_QUOTIENTS = {"linear_hyper_feature_attention": 1e-4}
"""tolerances: its gradients had errors of 1e-5 in float32"""


@pytest.mark.slow
@pytest.mark.parametrize("name", mixers.names())
def test_our_mixers_pass(name):
    mixer = mixers.make(name, d_model=12)
    run = Runner(mixer, max_length=10)

    def with_ids(x, context):
        """Ids that the inputs determine, for a mixer that wants them."""
        return context | ({"tokens": (16 * np.abs(x[..., 0])).astype(int) % 16} if mixer.wants_tokens else {})

    def forward(x, state=None, **context):
        return run(x, state, **with_ids(x, context))

    @functools.partial(jax.jit, compiler_options=QUICKLY)
    def gradient(x, dy, context):
        return jax.vjp(lambda x: mixer.apply(run.variables, x, None, **context)[0], x)[1](dy)[0]

    layer = Layer(
        forward,
        mixer.d_model,
        tuple(FEATURES),
        run.fresh,
        lambda x, dy, **context: np.asarray(gradient(x, dy, with_ids(x, context))),
        tolerance=SUMS_OF_QUOTIENTS.get(name, 1e-5),
        longest=5,
    )
    report = check_layer(layer, examples=1)
    report.raise_if_broken()
    assert report.of("holds") == ALL
