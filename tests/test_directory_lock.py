"""One writer per directory: refused while another lives, taken over from the dead."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from based_jax import directory_lock
from based_jax.directory_lock import FILE, DirectoryInUse, sole_writer
from tests.patience import PATIENCE
from tests.subprocesses import environment

ELSEWHERE = {"machine": "another", "host": "node7", "pid": 41, "started": "2026-01-02T03:04:05+00:00"}

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


def test_a_dead_process_holds_nothing(tmp_path, caplog):
    done = subprocess.run([sys.executable, "-c", HOLD_AND_DIE, str(tmp_path)], env=environment(), check=False)
    assert done.returncode == 7
    assert json.loads((tmp_path / FILE).read_text())["pid"] != os.getpid()
    with sole_writer(tmp_path, silence=PATIENCE):
        assert json.loads((tmp_path / FILE).read_text())["pid"] == os.getpid()
    assert not caplog.messages


@pytest.mark.parametrize(
    "text", [json.dumps(ELSEWHERE), "\0\0", '{"pid": "x"}', "[" * 9999], ids=["host", "NUL", "pid", "deep"]
)
def test_a_silent_process_of_another_machine_counts_as_dead(text, tmp_path, caplog):
    (tmp_path / FILE).write_text(text)
    with sole_writer(tmp_path, silence=0.1):
        pass
    first, second = caplog.messages
    assert f"{tmp_path}/{FILE} names process " in first
    assert "no sign of life" in second
    assert text != json.dumps(ELSEWHERE) or "process 41 on node7" in first


@pytest.mark.parametrize("reached", [True, None], ids=["another machine", "no flock"])
def test_a_sign_of_life_refuses(reached, tmp_path, monkeypatch):
    """Where files cannot be locked, that is all there is."""
    monkeypatch.setattr(directory_lock, "BEAT", 0.01)
    holder = ELSEWHERE if reached else {**ELSEWHERE, "machine": directory_lock._machine()}
    path = tmp_path / FILE
    path.write_text(json.dumps(holder))
    ended = threading.Event()
    with path.open("a") as file:
        beat = threading.Thread(target=directory_lock._renew, args=(file.fileno(), ended))
        beat.start()
        monkeypatch.setattr(directory_lock, "_flock", lambda file: reached)
        refused = pytest.raises(DirectoryInUse, match="process 41 on node7")
        try:
            with refused, sole_writer(tmp_path, silence=3):
                pass
        finally:
            ended.set()
            beat.join()
    assert json.loads(path.read_text()) == holder


def test_the_holder_gives_signs_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(directory_lock, "BEAT", 0.01)
    with sole_writer(tmp_path):
        os.utime(tmp_path / FILE, (1, 1))
        end = time.monotonic() + PATIENCE
        while (tmp_path / FILE).stat().st_mtime == 1 and time.monotonic() < end:
            time.sleep(0.01)
        assert (tmp_path / FILE).stat().st_mtime > 1


def test_a_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"), sole_writer(tmp_path / "file"):
        pass
