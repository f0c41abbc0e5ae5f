"""``python -m based_jax.export`` and the run.py that it leaves."""

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from based_jax import command
from based_jax.convert import save_pretrained
from based_jax.export import Exported, runner
from based_jax.export import __main__ as cli
from based_jax.models.language_model import LanguageModel
from tests.export.conftest import unchecked
from tests.generate.tiny import Tiny, make_tiny
from tests.tolerances import BFLOAT16, assert_close

SMALL = ("--platforms", "cpu", "--batch-size", 1, "--prefill-chunk", 4, "--decode-chunk", 3)


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return make_tiny("C")


@pytest.fixture
def checkpoint(tiny, tmp_path) -> Path:
    save_pretrained(tmp_path / "model", tiny.model, tiny.params)
    return tmp_path / "model"


@pytest.fixture
def run(capsys) -> Callable[..., tuple[int, str, str]]:
    """Run the command in this process: status, stdout, stderr."""

    def call(*argv: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            unchecked(command.run, cli.PROG, lambda: cli.main([str(arg) for arg in argv]))
        return (ended.value.code, *capsys.readouterr())

    return call


def test_command_and_runner(run, checkpoint, tiny, capsys):
    status, out, err = run("--checkpoint", checkpoint, *SMALL)
    assert (status, err) == (0, "")
    assert f"{checkpoint} -> {checkpoint}/exported in " in out
    assert "manifest.json" in out
    argv = ["--tokens", "1,2,3", "--max-new-tokens", "5", "--directory", str(checkpoint / "exported")]
    assert runner.main(argv) == 0
    assert capsys.readouterr().out == ",".join(map(str, tiny.greedy([1, 2, 3], 5))) + "\n"
    assert runner.main([*argv, "--temperature", "-1"]) == 2
    assert capsys.readouterr().err == "run.py: temperature = -1.0: expected a finite number, at least 0\n"


def test_dtype_and_place(run, checkpoint, tiny, tmp_path):
    """Weights are stored in the narrower dtype, but for those that the model reads in float32."""
    out = tmp_path / "elsewhere"
    assert run("--checkpoint", checkpoint, "--out", out, "--dtype", "bfloat16", *SMALL)[0] == 0
    exported = Exported.load(out)
    assert exported.manifest["dtype"] == "bfloat16"
    assert {str(leaf.dtype) for leaf in exported.params.values()} == {"bfloat16", "float32"}
    tokens = np.array([[1, 2, 3, 4]], np.int32)
    logits, _ = exported.prefill(exported.init(1), tokens, np.ones((1, 4), bool))
    model = LanguageModel(tiny.model.config.replace(dtype="bfloat16"))
    right = jax.jit(lambda params: model.apply(params, tokens)[0])(tiny.params)
    assert_close(logits, right[:, -1], BFLOAT16)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--wrong",), "--wrong"),
        ((), "--checkpoint"),
        (("--checkpoint", "nowhere/at/all"), "nowhere/at/all"),
        (
            ("--checkpoint", "GOOD", "--platforms", "cpu,tpu"),
            "platforms = 'tpu': expected one of 'cpu', 'cuda'",
        ),
        (("--checkpoint", "GOOD", "--kernels", "pallas"), "platforms = ('cpu', 'cuda'): expected cuda alone"),
        (("--checkpoint", "GOOD", "--kernels", "pallas", "--platforms", "cuda"), "--batch-size"),
        (("--checkpoint", "GOOD", "--max-length", "0"), "max_length = 0: expected"),
        (("--checkpoint", "GOOD", "--dtype", "float64"), "--dtype"),
        (("--checkpoint", "EMPTY"), "config.json"),
    ],
    ids=str,
)
def test_errors_are_one_line(run, checkpoint, tmp_path, flags, message):
    (tmp_path / "empty").mkdir()
    places = {"GOOD": checkpoint, "EMPTY": tmp_path / "empty"}
    status, out, err = run(*(places.get(flag, flag) for flag in flags))
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (checkpoint / "exported").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--tokens", "1,x"], "argument --tokens"),
        (["--max-new-tokens", "3"], "--tokens"),
        (
            ["--tokens", "1", "--directory", "nowhere"],
            "nowhere/manifest.json: expected an exported directory",
        ),
    ],
    ids=str,
)
def test_errors_of_the_runner(argv, message, capsys):
    try:
        status = runner.main(argv)
    except SystemExit as ended:  # of argparse, with its usage
        status = ended.code
    assert status == 2
    assert message in capsys.readouterr().err
