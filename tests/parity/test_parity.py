"""The authors' torch numbers, reproduced: one test per case below `--fixtures DIR`; an unknown case fails."""

import shutil
from pathlib import Path

import pytest

from based_jax.convert import from_torch, load_pretrained
from based_jax.convert.reference_modules import module_name
from based_jax.models import LanguageModel
from tests.parity.cases import WEIGHTS, Fixture, discover
from tests.parity.language_models import check_checkpoint, check_logits
from tests.parity.modules import check_module
from tests.parity.tasks import check_task
from tests.parity.training import check_training

CORE = {
    *(f"checkpoints/based-tiny/{name}" for name in WEIGHTS),
    "based/gated_mlp_alt_swiglu",
    *(f"zoology/{name}" for name in ("base_conv_short", "delta_net", "gla", "h3", "mamba2", "rwkv7")),
}
"""Kinds of modules; tests/ops compares the ops of the others with NumPy."""
COVERED = {
    *(f"checkpoints/attn-tiny/{name}" for name in WEIGHTS),
    *(f"based/{name}" for name in ("mha_rotary", "sliding_attention_variant")),
    "zoology/h3_ema_l_max",
    *(f"ops/{name}" for name in ("delta_rule", "dplr", "gated_delta_rule", "gla", "retention", "ssd")),
    *(f"training/mqar_{name}_adamw" for name in ("based", "h3", "hyena")),  # attention's is not
}
"""Slow cases: other numbers for the code of another one. Those of feature maps and MQAR are slow too, which
tests/ops and tests/data compare with NumPy."""


def pytest_generate_tests(metafunc):
    directory = metafunc.config.getoption("--fixtures-dir").resolve()

    def case(path: Path):
        name = path.relative_to(directory)
        case = str(name if name.name in WEIGHTS else name.with_suffix(""))
        is_slow = case in COVERED or name.parts[0] in ("feature_maps", "mqar")
        mark = pytest.mark.slow if is_slow else pytest.mark.release
        return pytest.param(path, id=case, marks=[] if case in CORE else [mark])

    metafunc.parametrize("path", [case(path) for path in discover(directory)])


QUIRKS = {
    "quirk_long_conv_wraparound": "the authors' transform is too short: the end leaks into the beginning"
}
"""What we do not reproduce, and why; these cases must fail."""


def test_parity(path: Path, tmp_path: Path, request):
    if path.stem in QUIRKS:
        request.applymarker(pytest.mark.xfail(raises=AssertionError, strict=True, reason=QUIRKS[path.stem]))
    is_checkpoint = path.name in WEIGHTS
    fixture = Fixture(path.parent / "logits.npz" if is_checkpoint else path)
    if is_checkpoint:
        for file in (path, path.parent / "config.json"):  # this weight file only
            shutil.copy(file, tmp_path / file.name)
    if "num_kv_pairs" in fixture.meta:  # rows of a task, no module
        check_task(fixture)
        finish(fixture)
        return
    unknown = None
    try:
        if is_checkpoint:
            module, params = load_pretrained(tmp_path)
        else:
            module, params = from_torch(fixture.meta, fixture.group("param"))
    except ValueError as error:
        unknown = error
    if unknown:
        case = request.node.callspec.id
        pytest.fail(f"{case} ({module_name(fixture.meta)}) has no equal here: {unknown}", pytrace=False)

    if is_checkpoint:
        check_checkpoint(fixture, module, params, path)
    elif "optimizer" in fixture.meta:
        check_training(fixture, module, params)
    elif isinstance(module, LanguageModel):
        check_logits(fixture, module, params)
    else:
        check_module(fixture, module, params)
    finish(fixture)


def finish(fixture: Fixture) -> None:
    """Every output was looked at; say how close the closest call was."""
    fixture.expect_all_compared()
    worst = max(fixture.errors, key=fixture.errors.__getitem__)
    print(f"closest to its tolerance: {worst}, {fixture.errors[worst]:.0%} of it")  # shown by pytest -rP
