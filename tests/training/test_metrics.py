"""metrics.jsonl: full precision, crash-safe, rewound on resume."""

import errno
import json
import math
import os
import re
import socket
import threading
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from based_jax.training.devices import hosts
from based_jax.training.run.metrics import EventFile, MetricWriter, open_writer, read_metrics


def test_resume_drops_later_and_broken_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        "".join(json.dumps({"step": step, "loss": 0.5}) + "\n" for step in (1, 2, 3)) + '{"step": 4, "lo'
    )
    with MetricWriter(tmp_path, steps=9, start=2) as writer:
        writer.write(3, {"loss": 1 / 3})
    assert read_metrics(path) == [
        {"step": 1, "loss": 0.5},
        {"step": 2, "loss": 0.5},
        {"step": 3, "loss": 1 / 3},
    ]


def test_only_the_main_process_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(hosts, "is_main", lambda: False)
    with open_writer(tmp_path, 9, 0) as writer:
        writer.write(1, {"loss": 1.0})
    assert not list(tmp_path.iterdir())


def _events(path: Path) -> list[Event]:
    """Read an event file: records of a length, its checksum, an event, and the checksum of that."""
    data, events = path.read_bytes(), []
    while data:
        end = 12 + int.from_bytes(data[:8], "little")
        events.append(Event.FromString(data[12:end]))
        data = data[end + 4 :]
    return events


@pytest.mark.parametrize("start", [0, 2])
def test_event_files_hold_the_finite_metrics_and_where_a_resumed_run_restarts(tmp_path, start):
    threads = threading.active_count()
    with MetricWriter(tmp_path, steps=4, start=start) as writer:
        writer.write(3, {"loss": 1.5, "gap": math.nan})
        (path,) = (tmp_path / "events").iterdir()
        version, restart, scalar = _events(path)  # on disk before the file is closed
        assert threading.active_count() == threads
    assert re.fullmatch(rf"events\.out\.tfevents\.\d{{10}}\.{re.escape(socket.gethostname())}", path.name)
    assert version.file_version == "brain.Event:2"
    assert (restart.step, restart.session_log.status) == (start + 1, SessionLog.START)
    assert [(scalar.step, value.tag, value.simple_value) for value in scalar.summary.value] == [
        (3, "loss", 1.5)
    ]


@pytest.mark.parametrize(
    "line",
    [b"garbage", b"\0\0\0", b"{}", b"[]", b"\xff", b'{"step": null}', b'{"step": "1"}', b"[" * 10**5, b""],
    ids=lambda line: str(line[:16]),
)
def test_a_line_that_is_no_metrics_is_left_out_with_a_warning(line, tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    before = b'{"step": 1, "loss": 0.5}\n' + line + b'\n{"step": 2, "loss": 0.25}\n'
    path.write_bytes(before)
    expected = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]
    assert read_metrics(path) == expected
    with MetricWriter(tmp_path, steps=9, start=2):
        pass
    first, second = caplog.messages
    assert first == f"{path} is damaged: line 2 left out"
    assert second == f"{first}; the file as it was is now {tmp_path}/damaged_metrics.jsonl"
    assert (tmp_path / "damaged_metrics.jsonl").read_bytes() == before
    assert [json.loads(line) for line in path.read_text().splitlines()] == expected


def test_a_full_disk_names_the_last_checkpoint(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "checkpoints" / "5").mkdir(parents=True)
    with MetricWriter(tmp_path, steps=9) as writer:
        monkeypatch.setattr(EventFile, "write", full)
        with pytest.raises(
            OSError, match=rf"No space left .*; last complete checkpoint: {tmp_path}/check\S+/5$"
        ):
            writer.write(1, {"loss": 0.5})
