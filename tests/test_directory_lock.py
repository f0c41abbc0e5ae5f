"""One writer per directory: refused while another lives, taken over from the dead."""

import os
import subprocess
import sys

import pytest

from based_jax.directory_lock import FILE, DirectoryInUse, sole_writer
from tests.subprocesses import environment

HOLD_AND_DIE = """
import os, pathlib, sys
from based_jax.directory_lock import sole_writer
with sole_writer(pathlib.Path(sys.argv[1])):
    os._exit(7)
"""


def test_a_second_writer_is_refused_in_one_line(tmp_path):
    with sole_writer(tmp_path), pytest.raises(DirectoryInUse) as refused, sole_writer(tmp_path):
        pass
    message = str(refused.value)
    assert message.startswith(f"{tmp_path} is in use by process {os.getpid()} on ")
    assert "stop it, or choose another directory" in message
    assert "\n" not in message
    with sole_writer(tmp_path):  # the refusal left the lock as it was, and its end released it
        pass


def test_nothing_is_left(tmp_path):
    with sole_writer(tmp_path / "runs" / "a"):
        assert (tmp_path / "runs" / "a" / FILE).is_file()
    assert not (tmp_path / "runs" / "a").exists()
    with sole_writer(tmp_path):
        (tmp_path / "kept").touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "runs"]


def test_a_dead_process_holds_nothing(tmp_path):
    (tmp_path / ".a.json-unfinish").mkdir()  # of `whole_file`
    (tmp_path / ".a.json-unfinish" / "a.json").touch()
    (tmp_path / ".own-files").mkdir()
    (tmp_path / ".own-files" / "a.json").touch()
    done = subprocess.run([sys.executable, "-c", HOLD_AND_DIE, str(tmp_path)], env=environment(), check=False)
    assert done.returncode == 7
    assert f"process {os.getpid()} " not in (tmp_path / FILE).read_text()
    with sole_writer(tmp_path):
        assert (tmp_path / FILE).read_text().startswith(f"process {os.getpid()} ")
    assert [path.name for path in tmp_path.iterdir()] == [".own-files"]


def test_a_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match=f"^{path}: expected a directory"), sole_writer(path):
            pass
    (tmp_path / FILE).mkdir()
    with pytest.raises(OSError, match="expected a regular file"), sole_writer(tmp_path):
        pass
