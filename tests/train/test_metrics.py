"""metrics.jsonl: full precision, crash-safe, rewound on resume."""

import json

from train.metrics import MetricWriter, read_metrics


def test_floats_keep_all_digits(tmp_path):
    with MetricWriter(tmp_path, steps=2) as writer:
        writer.write(1, {"loss": 1 / 3})
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "loss": 1 / 3}]


def test_resume_drops_later_and_broken_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        "".join(json.dumps({"step": step, "loss": 0.5}) + "\n" for step in (1, 2, 3)) + '{"step": 4, "lo'
    )
    with MetricWriter(tmp_path, steps=9, start=2) as writer:
        writer.write(3, {"loss": 0.25})
    assert read_metrics(path) == [
        {"step": 1, "loss": 0.5},
        {"step": 2, "loss": 0.5},
        {"step": 3, "loss": 0.25},
    ]


def test_event_files_are_written(tmp_path):
    with MetricWriter(tmp_path, steps=1) as writer:
        writer.write(1, {"loss": 1.0})
    (events,) = (tmp_path / "events").iterdir()
    assert b"loss" in events.read_bytes()
