"""Whatever ends a run: what was saved is not lost, and what is wrong is said in one line."""

import shutil

import pytest

from based_jax.command import run
from based_jax.training.commands import lm
from tests.training.runs import flags, kill_often, resumes_bit_exactly, steps_saved


@pytest.fixture(scope="module")
def often(one_layer):
    """Settings of a small run that saves often."""
    return {**one_layer, "eval_every": 0, "checkpoint_every": 2}


def one_line(error: str) -> str:
    """The last line, when there is no traceback."""
    assert "Traceback" not in error, error
    return error.strip().splitlines()[-1]


@pytest.mark.release
def test_killed_at_a_random_moment(often, finished, tmp_path):
    kill_often(often, tmp_path, seed=0, times=1)
    resumes_bit_exactly(tmp_path, finished)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: shutil.rmtree(data), "there is no such path"),
        (lambda data: (data / "new.txt").write_text("One more. " * 99), "but it has changed (crc32"),
    ],
)
def test_data_that_vanished_or_changed(change, message, often, finished, tmp_path, text, capsys):
    data, workdir = tmp_path / "text", tmp_path / "run"
    shutil.copytree(text, data)
    shutil.copytree(finished[0], workdir)
    config = workdir / "config.json"
    config.write_text(config.read_text().replace(str(text), str(data)))
    change(data)
    words = [*flags({**often, "data": str(data)}, workdir), "--resume"]
    with pytest.raises(SystemExit) as exit_:
        run(lm.PROG, lambda: lm.main(words))
    assert exit_.value.code == 2
    assert message in one_line(capsys.readouterr().err)
    assert steps_saved(workdir) == steps_saved(finished[0])
