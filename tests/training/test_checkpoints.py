"""Checkpoints when storage fails: damage is noticed and passed over, a full disk is one clear error."""

import gc
import json
import os
import resource
import shutil
import signal

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax.training.run.checkpoints import Checkpoints, SaveFailed
from tests.training.runs import steps_saved

STATE = {
    "kernel": np.asarray(jax.random.normal(jax.random.key(0), (64, 128))),
    "bias": np.ones(3, np.float32),
    "step": np.int32(7),
}
ABSTRACT = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(
        leaf.shape, leaf.dtype, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0])
    ),
    STATE,
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("saved")
    with Checkpoints(workdir) as checkpoints:
        for step in (5, 10):
            checkpoints.save(step, jax.tree.map(jnp.asarray, STATE), {"place": step})
    return workdir


@pytest.fixture
def workdir(saved, tmp_path):
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    return tmp_path


def newest(workdir):
    """Step, state and position that a run would continue from."""
    with Checkpoints(workdir) as checkpoints:
        step = checkpoints.newest_intact()
        return step, *checkpoints.restore(step, ABSTRACT)


def largest_file(directory):
    return max(
        (path for path in directory.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )


def change_a_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_an_intact_one_is_taken(workdir):
    step, state, position = newest(workdir)
    assert (step, position) == (10, {"place": 10})
    chex.assert_trees_all_equal(state, STATE)
    assert not (workdir / "damaged_checkpoints").exists()


def test_the_interface_of_orbax_1_reads_what_ours_writes(workdir):
    """Not the reverse: it stores JSON under another file name, which it alone reads."""
    v1 = pytest.importorskip("orbax.checkpoint.experimental.v1")
    found = v1.load_checkpointables(workdir / "checkpoints" / "10", {"state": ABSTRACT, "data": None})
    chex.assert_trees_all_equal(found["state"], STATE)
    assert json.loads(found["data"]["state"]) == {"place": 10}


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        ("state", cut),
        ("state", change_a_bit),  # Orbax reads it without complaint
        ("state", lambda path: path.unlink()),
        ("data", cut),
    ],
)
def test_a_damaged_one_is_passed_over_with_a_warning(part, damage, workdir, caplog):
    damage(largest_file(workdir / "checkpoints" / "10" / part))
    step, state, position = newest(workdir)
    assert (step, position) == (5, {"place": 5})
    chex.assert_trees_all_equal(state, STATE)
    (message,) = caplog.messages
    assert f"{workdir}/checkpoints/10 is damaged: {part}/" in message
    assert f"falling back to {workdir}/checkpoints/5" in message
    assert (workdir / "damaged_checkpoints" / "10").is_dir()
    # The step's number is free again.
    with Checkpoints(workdir) as checkpoints:
        checkpoints.save(10, jax.tree.map(jnp.asarray, STATE), {"place": 11})
    assert newest(workdir)[2] == {"place": 11}
    assert len(caplog.messages) == 1


def ours(caplog):
    """Messages without Orbax's."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "based_jax.training.run.checkpoints"
    ]


def without_files(path):
    shutil.copytree(path.with_name("10"), path)
    (path / "checksums.json").write_text("{}")


def of_another_step(path):
    shutil.copytree(path.with_name("5"), path)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (of_another_step, "it is a checkpoint of step 5"),
        (lambda path: path.mkdir(), "it has no checksums.json"),
        (lambda path: path.write_text("x"), "it is no directory"),
        (lambda path: path.symlink_to("nowhere"), "it is no directory"),
        (without_files, "checksums.json lists no files of a checkpoint"),
    ],
    ids=["another step", "empty", "file", "link", "no checksums"],
)
def test_what_is_no_checkpoint_of_the_run_is_passed_over_with_a_warning(make, reason, workdir, caplog):
    make(workdir / "checkpoints" / "15")
    with Checkpoints(workdir) as checkpoints:
        assert checkpoints.newest_intact() == 10
        checkpoints.restore(10, ABSTRACT)
        checkpoints.save(15, jax.tree.map(jnp.asarray, STATE), {"place": 15})  # its number is free again
        checkpoints.wait()
        assert checkpoints.newest_intact() == 15
    (message,) = ours(caplog)
    assert f"{workdir}/checkpoints/15 is damaged: {reason}" in message
    assert os.path.lexists(workdir / "damaged_checkpoints" / "15")


def test_other_names_than_a_steps(workdir, caplog):
    for name in ("012", "0", "9" * 200, "\u00b2", "step_11", "-1"):
        (workdir / "checkpoints" / name).mkdir()
    assert newest(workdir)[0] == 10
    assert len(ours(caplog)) == 2  # 012 and the long one are newer


def test_a_file_for_the_checkpoints(tmp_path):
    (tmp_path / "checkpoints").touch()
    with pytest.raises(OSError, match=r"checkpoints: expected a directory of checkpoints, found a file$"):
        Checkpoints(tmp_path)


def test_when_all_are_damaged_none_is_touched(workdir):
    for step in ("5", "10"):
        cut(largest_file(workdir / "checkpoints" / step / "state"))
    with pytest.raises(ValueError, match=r"checkpoints/10 is damaged, and so are all before it: state/"):
        newest(workdir)
    assert steps_saved(workdir) == [5, 10]


def test_a_half_written_one_is_ignored(workdir):
    shutil.copytree(workdir / "checkpoints" / "5", workdir / "checkpoints" / "15.orbax-checkpoint-tmp")
    assert newest(workdir)[0] == 10


@pytest.fixture
def full_disk():
    """No file may grow beyond 16 KiB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


# Orbax keeps its other writers alive when one has failed; collected here, they hurt no other test.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_full_disk_is_one_error_that_names_what_is_left(workdir, request):
    checkpoints = Checkpoints(workdir)
    request.getfixturevalue("full_disk")
    message = (
        rf"{workdir}/checkpoints/15 cannot be written: File too large; last complete .*: {workdir}/\S+/10$"
    )
    checkpoints.save(15, jax.tree.map(jnp.asarray, STATE), {"place": 15})
    with pytest.raises(SaveFailed, match=message):
        checkpoints.close()
    assert newest(workdir)[0] == 10
    gc.collect()
