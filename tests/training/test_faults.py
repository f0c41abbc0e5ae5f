"""Whatever ends a run: what was saved is not lost, and what is wrong is said in one line."""

import resource
import shutil

import chex
import pytest

from based_jax.command import run
from based_jax.training.commands import lm
from based_jax.training.run.directory import parse_run
from tests.training.runs import command, flags, kill_often, losses, start, steps_saved, until


@pytest.fixture(scope="module")
def often(one_layer):
    """Settings of a small run that saves often."""
    return {**one_layer, "eval_every": 0, "checkpoint_every": 2}


@pytest.fixture
def copy(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    return tmp_path


def resume(workdir):
    return lm.train(parse_run(lm.LMConfig, ["--workdir", str(workdir), "--resume"], lm.PROG))


def one_line(error: str) -> str:
    """The last line, when there is no traceback."""
    assert "Traceback" not in error, error
    return error.strip().splitlines()[-1]


def kill_and_resume(times, often, finished, workdir, seed):
    kill_often(often, workdir, seed, times)
    run = resume(workdir)
    assert losses(workdir) == losses(finished[0])
    chex.assert_trees_all_equal(run.outcome.state.params, finished[1].outcome.state.params)


@pytest.mark.release
def test_killed_at_a_random_moment(often, finished, tmp_path):
    kill_and_resume(1, often, finished, tmp_path, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_killed_at_twenty_more_random_moments(seed, often, finished, tmp_path):
    kill_and_resume(2, often, finished, tmp_path, seed)


@pytest.mark.slow  # tests/training/test_checkpoints.py has the same in one process
def test_a_disk_that_fills_up(often, finished, tmp_path):
    """From step 5 on no file may grow beyond 8 KiB."""

    def fill(process):
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1 << 13, 1 << 13))

    status, error = until(5, start(command(often, tmp_path)), fill)
    message = one_line(error)
    assert status == 2
    last = steps_saved(tmp_path)[-1]
    assert message.startswith("based-jax train lm: checkpoint ")
    assert "cannot be written: File too large" in message
    assert message.endswith(f"last complete checkpoint: {tmp_path}/checkpoints/{last}")
    resume(tmp_path)
    assert losses(tmp_path) == losses(finished[0])


@pytest.mark.release  # tests/training/test_checkpoints.py has the same without a run
def test_a_damaged_checkpoint(copy, finished, caplog):
    """The run goes on from the one before, and makes the same losses again."""
    newest = copy / "checkpoints" / str(steps_saved(copy)[-1])
    largest = max(newest.glob("state/**/*"), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])
    run = resume(copy)
    (message,) = caplog.messages
    assert f"{newest} is damaged" in message
    assert losses(copy) == losses(finished[0])
    chex.assert_trees_all_equal(run.outcome.state.params, finished[1].outcome.state.params)


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
