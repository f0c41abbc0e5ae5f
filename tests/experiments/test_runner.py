"""Jobs as processes: recorded once, failures kept, resumed, stopped. The trainer is a script of the test."""

import dataclasses
import sys
import threading
import time

import pytest

from based_jax.directory_lock import DirectoryInUse, sole_writer
from based_jax.experiments import runner as slots
from based_jax.experiments.job import Job, of_families
from based_jax.experiments.results import Results, best, read
from based_jax.experiments.runner import Runner, Slot
from tests.subprocesses import PATIENCE

# Takes the trainer's flags; --mixer says how it ends.
TRAINER = """
import json, os, pathlib, signal, sys, time
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
workdir = pathlib.Path(flags["--workdir"])
with (workdir / "starts").open("a") as file:
    file.write(os.environ.get("PLACE", "") + "\\n")
(workdir / "checkpoints").mkdir(exist_ok=True)
if flags["--mixer"] == "dies":
    sys.exit("no memory left")
if flags["--mixer"] == "stopped":
    sys.exit(143)
if flags["--mixer"] == "starting":
    os.kill(os.getpid(), signal.SIGTERM)
if flags["--mixer"] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if flags["--mixer"] == "waits" and len((workdir / "starts").read_text().splitlines()) == 1:
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    (workdir / "ready").touch()
    time.sleep(600)
records = [{"learning_rate": rate, "seed": 0, "status": "finished", "accuracy": rate} for rate in (0.1, 0.3)]
(workdir / "results.jsonl").write_text("".join(json.dumps(record) + "\\n" for record in records))
"""

FINE, DIES, WAITS = (Job("Family", name, name, {"d_model": 8}) for name in ("fine", "dies", "waits"))


@pytest.fixture
def runner(tmp_path):
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    two = [Slot("0", {"PLACE": "first"}), Slot("1", {"PLACE": "second"})]

    def make(ended=lambda job, rows: None):
        out = tmp_path / "out"
        results = Results(out / "results.jsonl")
        return Runner(out, results, two, ended, trainer=[sys.executable, str(script)])

    (tmp_path / "out").mkdir()
    return make


def starts(runner: Runner, job: Job) -> list[str]:
    return (runner.out / "runs" / job.name / "starts").read_text().split()


def test_jobs_are_trained_once_and_failures_recorded(runner):
    calls = []
    first = runner(lambda job, rows: calls.append((job.setting, len(rows))))
    assert first.run([FINE, DIES])
    assert sorted(calls) == [("dies", 1), ("fine", 2)]
    assert {row["command"] for row in first.results.of(FINE)} == {FINE.line}
    (row,) = first.results.of(DIES)
    assert (row["status"], row["exit_status"], row["error"]) == ("failed", 1, "no memory left")
    assert not (first.out / "runs" / FINE.name / "checkpoints").exists()
    assert {*starts(first, FINE), *starts(first, DIES)} == {"first", "second"}

    again = runner()
    assert again.run([FINE, DIES])
    assert again.results.rows == first.results.rows
    assert len(starts(again, DIES)) == 1

    again.results.drop_failed()
    assert again.run([FINE, DIES])
    assert len(starts(again, DIES)) == 2
    assert len(starts(again, FINE)) == 1


def test_a_trainer_that_was_left_running_is_not_joined(runner):
    """It would be recorded as a failure, and its checkpoints removed."""
    first = runner()
    workdir = first.out / "runs" / FINE.name
    with sole_writer(workdir), pytest.raises(DirectoryInUse, match=f"{FINE.name} is in use by process"):
        first.run([DIES, FINE])
    assert not first.results.rows
    assert not (first.out / "runs" / DIES.name).exists()


def test_a_stop_reaches_the_trainers_and_the_next_call_continues(runner):
    first = runner()
    ready = first.out / "runs" / WAITS.name / "ready"
    ended = []
    thread = threading.Thread(target=lambda: ended.append(first.run([WAITS, *[FINE] * 3])))
    thread.start()
    deadline = time.monotonic() + PATIENCE
    while not ready.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    first.stop()
    thread.join(PATIENCE)
    assert ended == [False]
    assert not first.results.has(WAITS)
    again = runner()
    assert again.run([WAITS])
    assert [row["accuracy"] for row in again.results.of(WAITS)] == [0.1, 0.3]


def test_trainers_that_a_signal_ends(runner):
    """SIGTERM is no failure: one has saved, one has yet to begin. The kernel's SIGKILL is one, by name."""
    names = "stopped", "starting", "killed"
    stopped, starting, killed = (Job("Family", name, name, {"d_model": 8}) for name in names)
    made = runner()
    assert not made.run([stopped, starting, killed])
    (row,) = made.results.rows
    assert (row["job"], row["error"]) == (killed.name, "ended by SIGKILL, after: no output")
    assert (made.out / "runs" / stopped.name / "checkpoints").exists()


def test_the_best_learning_rate_is_best_over_seeds(tmp_path):
    def row(rate, seed, accuracy, status="finished"):
        slices = {"num_pairs": {"8": 1 - accuracy}} if status != "failed" else None
        values = {"accuracy": accuracy, "status": status, "slices": slices}
        return {"learning_rate": rate, "seed": seed, **values}

    results = Results(tmp_path / "results.jsonl")
    results.add(FINE, [row(0.1, 0, 0.9), row(0.1, 1, 0.2), row(0.2, 0, 0.6), row(0.2, 1, 0.7)])
    results.add(FINE, [row(0.3, 0, 0.99), row(0.3, 1, None, "failed")])  # a rate at which some diverge
    results.add(WAITS, [row(0.1, 0, None, "failed"), row(0.2, 0, 0.5)])
    results.add(DIES, [{"status": "failed", "error": "no memory left"}])
    fine, waits = best(results.rows)
    assert (fine["learning_rate"], fine["accuracy"], fine["seeds"]) == (0.2, pytest.approx(0.65), 2)
    assert (fine["slices"], fine["seed"]) == ({"num_pairs": {"8": pytest.approx(0.35)}}, "0, 1")
    assert (waits["learning_rate"], waits["accuracy"], waits["seeds"]) == (0.2, 0.5, 1)
    assert best(results.rows, ("num_pairs", "8"))[0]["learning_rate"] == 0.1


def test_a_full_disk_costs_no_row_and_leaves_no_job_in_part(tmp_path, monkeypatch):
    path = tmp_path / "results.jsonl"
    results = Results(path)
    results.add(FINE, [{"status": "finished"}, {"status": "finished"}])
    path.write_bytes(path.read_bytes() + b"damaged\n")
    before = path.read_bytes()

    def fail(path):
        raise OSError(f"{path}: the disk is full")

    monkeypatch.setattr("based_jax.files.whole_file", fail)
    for write in (lambda: results.add(DIES, [{"status": "finished"}] * 4), lambda: Results(path)):
        with pytest.raises(OSError, match="full"):
            write()
        assert path.read_bytes() == before
    assert not results.has(DIES)


def test_results_of_other_flags_are_moved(tmp_path):
    results, old = Results(tmp_path / "results.jsonl"), dataclasses.replace(FINE, flags={"epochs": 7})
    kept = dataclasses.replace(FINE, family="another")
    for job in (old, kept):
        results.add(job, [{"status": "finished", "accuracy": 0.5}])
    assert results.move_replaced([FINE], tmp_path / "replaced.jsonl") == 1
    assert [row["job"] for row in Results(results.path).rows] == [kept.name]
    assert [row["job"] for row in read(tmp_path / "replaced.jsonl")] == [old.name]


def test_flags_of_the_trainer():
    job = Job(
        "Based", "d 64", "based:feature_dim=8", {"d_model": 64, "random_fill": False, "positions": True}
    )
    words = "--mixer based:feature_dim=8 --d-model 64 --no-random-fill --positions"
    assert job.arguments == words.split()
    assert job.line == f"based-jax train mqar {words}"
    assert Job("B", "", "a,b", {}).arguments == ["--layers", "a,b"]
    assert job.name.startswith("based-d-64-")


def test_slots_share_the_cores_and_give_each_accelerator_a_process(monkeypatch):
    monkeypatch.setattr(slots.os, "cpu_count", lambda: 8)
    assert [slot.environment for slot in slots._on_cpu(2)] == [{"NPROC": "4"}] * 2
    devices = slots._on_accelerators(3, None)
    assert [slot.environment["JAX_CUDA_VISIBLE_DEVICES"] for slot in devices] == ["0", "1", "2"]
    assert len(slots._on_accelerators(8, 2)) == 2
    shared = [slot.environment for slot in slots._on_accelerators(2, 3)]
    assert [each["JAX_CUDA_VISIBLE_DEVICES"] for each in shared] == ["0", "1", "0"]
    assert {each["XLA_PYTHON_CLIENT_PREALLOCATE"] for each in shared} == {"false"}


def test_families_may_have_commas_in_their_names():
    names = ["Based", "Gated DeltaNet", "Gated DeltaNet, beta to 2", "beta to 2"]
    jobs = [Job(name, "", "based", {}) for name in names]

    def chosen(families: str | None) -> list[str]:
        return [job.family for job in of_families(jobs, families)]

    assert chosen(None) == names
    assert chosen("Gated DeltaNet") == ["Gated DeltaNet"]
    assert chosen("Gated DeltaNet, beta to 2") == ["Gated DeltaNet, beta to 2"]
    assert chosen(" Gated DeltaNet, beta to 2,Based") == ["Based", "Gated DeltaNet, beta to 2"]
    assert chosen("beta to 2, Gated DeltaNet,Based") == ["Based", "Gated DeltaNet", "beta to 2"]
    for wrong in ("Based, beta to 3", "Based,", ""):
        with pytest.raises(ValueError, match=r"families = '(beta to 3)?'"):
            of_families(jobs, wrong)
