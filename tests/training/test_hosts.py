"""Several processes train as one: the same losses, one run directory, any number of processes resumes."""

import re
import shutil
import signal
import socket
from types import SimpleNamespace

import numpy as np
import pytest

import based_jax as bj
from based_jax.training.commands import lm
from based_jax.training.devices import hosts
from based_jax.training.run.metrics import read_metrics
from tests.subprocesses import PATIENCE
from tests.training.runs import command, losses, resume, start, steps_saved, until

# float32 sums over rows in another order, over six steps.
CLOSE = {"rtol": 2e-6}


@pytest.fixture(scope="module")
def six(one_layer):
    """Six steps of a small run whose batches four devices can share."""
    return {**one_layer, "steps": 6, "batch_size": 8, "eval_every": 6, "checkpoint_every": 3}


def together(settings, workdir, processes, devices, *more, **options):
    """Processes of one run; the first one's standard error is worth reading."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    where = ["--coordinator", f"localhost:{port}", "--num-processes", str(processes)]
    return [
        start(command(settings, workdir, *where, "--process-id", str(number), *more, **options), devices)
        for number in range(processes)
    ]


def finish(processes):
    """The end of all of them: what the first one said."""
    said = [process.communicate(timeout=PATIENCE)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), said
    return said[0]


@pytest.fixture(scope="module")
def alone(six, tmp_path_factory):
    """One process, one device."""
    workdir = tmp_path_factory.mktemp("alone")
    lm.train(lm.LMConfig(workdir=workdir, **six))
    return workdir


@pytest.fixture(scope="module")
def two(six, tmp_path_factory):
    """Two processes with two devices each."""
    workdir = tmp_path_factory.mktemp("two")
    finish(together(six, workdir, 2, 2, "--mesh", "data=2,fsdp=2"))
    return workdir


def until_step_3(workdir, target):
    """A copy of a run that was stopped after its first checkpoint."""
    shutil.copytree(workdir, target, dirs_exist_ok=True)
    shutil.rmtree(target / "checkpoints" / "6")
    shutil.rmtree(target / "model")
    return target


@pytest.mark.slow
def test_two_processes_make_the_losses_of_one(two, alone):
    np.testing.assert_allclose(losses(two), losses(alone), **CLOSE)
    ours, theirs = (read_metrics(workdir / "metrics.jsonl")[-1]["eval_loss"] for workdir in (two, alone))
    np.testing.assert_allclose(ours, theirs, **CLOSE)
    assert len(list((two / "events").iterdir())) == 1
    _, params = bj.load_pretrained(two / "model")
    _, expected = bj.load_pretrained(alone / "model")
    np.testing.assert_allclose(params["params"]["embedding"], expected["params"]["embedding"], atol=2e-5)


@pytest.mark.slow
def test_one_process_continues_what_two_began(two, tmp_path):
    copy = until_step_3(two, tmp_path)
    resume(copy, "--mesh", "data=1")
    np.testing.assert_allclose(losses(copy), losses(two), **CLOSE)


@pytest.mark.slow
def test_four_processes_continue_what_two_began(six, two, tmp_path):
    copy = until_step_3(two, tmp_path)
    said = finish(together(six, copy, 4, 1, "--resume", "--mesh", "fsdp=4"))
    assert "resuming at step 3" in said
    np.testing.assert_allclose(losses(copy), losses(two), **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["tensor=2,data=2", "data=2,tensor=2", "context=4", "fsdp=2,data=2"])
def test_any_mesh_over_two_processes(mesh, six, alone, tmp_path):
    """Also meshes whose rows or tokens are not the processes' own blocks."""
    finish(together(six, tmp_path, 2, 2, "--mesh", mesh))
    np.testing.assert_allclose(losses(tmp_path), losses(alone), rtol=2e-5)


@pytest.mark.slow
def test_all_stop_at_the_step_at_which_one_got_the_signal(six, tmp_path):
    """SIGTERM to the process that does not log; the run is saved and continues."""
    long = {**six, "steps": 4000, "eval_every": 0, "log_every": 1, "checkpoint_every": 0}
    first, second = together(long, tmp_path, 2, 1)
    status, said = until(4, first, lambda _: second.send_signal(signal.SIGTERM))
    second.communicate(timeout=PATIENCE)
    assert (status, second.returncode) == (128 + signal.SIGTERM,) * 2, said
    step = int(re.search(r"SIGTERM: saved step (\d+)", " ".join(said.split()))[1])
    assert steps_saved(tmp_path) == [step]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_lost_process_ends_the_others_and_the_run_resumes(victim, six, alone, tmp_path):
    """SIGKILL in the middle of a step."""
    processes = together({**six, "checkpoint_every": 1}, tmp_path, 2, 1, "--heartbeat-timeout", "10")
    _, said = until(4, processes[0], lambda _: processes[victim].kill())
    _, said_by_second = processes[1].communicate(timeout=PATIENCE)
    assert processes[victim].returncode == -signal.SIGKILL
    # The runtime, which has no line of ours, may come first where the collective does not notice.
    assert processes[1 - victim].returncode in (2, -signal.SIGABRT)
    message = f"process {1 - victim} of 2: another process was probably lost: "
    said = said if victim else said_by_second
    assert message in said or "another task died" in said, said
    finish(together({**six, "checkpoint_every": 1}, tmp_path, 2, 1, "--resume"))
    np.testing.assert_allclose(losses(tmp_path), losses(alone), **CLOSE)


@pytest.mark.parametrize(
    ("held", "share"),
    [
        ([(0, 4)], (0, 2)),
        ([(4, 6), (6, 8), (4, 6)], (1, 2)),  # twice, with other tokens
        ([(6, 8)], (3, 4)),
        ([(0, 8)], (0, 1)),
        ([(0, 2), (4, 6)], (0, 1)),  # not one block
        ([(2, 6)], (0, 1)),  # not a block of its own size
    ],
)
def test_a_process_makes_the_rows_that_its_devices_hold(held, share, monkeypatch):
    class Sharding:
        mesh = SimpleNamespace(size=8)

        def addressable_devices_indices_map(self, shape):
            return {number: (slice(*rows), slice(None)) for number, rows in enumerate(held)}

    assert hosts.share_of_rows(Sharding()) == (0, 1)  # alone
    monkeypatch.setattr("jax.process_count", lambda: 2)
    monkeypatch.setattr(hosts, "NamedSharding", Sharding)
    assert hosts.share_of_rows(Sharding()) == share


SLURM = {"SLURM_NTASKS": "4", "SLURM_PROCID": "3", "SLURM_STEP_NODELIST": "node[1-4]"}


def test_half_a_description_of_the_processes(monkeypatch):
    for settings, variables, message in (
        ({"coordinator": "a:1"}, {"JAX_NUM_PROCESSES": "two"}, "JAX_NUM_PROCESSES = 'two': expected"),
        ({"coordinator": "host"}, {}, "coordinator = 'host': expected HOST:PORT"),
        ({}, {"JAX_COORDINATOR_ADDRESS": "host"}, "JAX_COORDINATOR_ADDRESS = 'host': expected HOST:PORT"),
        ({"num_processes": 0}, {}, "num_processes = 0: expected at least 1"),
        ({"heartbeat_timeout": 0}, {}, "heartbeat_timeout = 0: expected at least 1"),
    ):
        monkeypatch.setattr(hosts.os, "environ", variables)
        with pytest.raises(ValueError, match=message):
            hosts.join(hosts.HostsConfig(**settings))


@pytest.mark.parametrize(
    ("variables", "joined"),
    [
        ({}, []),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, []),  # a batch script, not below srun
        ({**SLURM, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, []),
        (SLURM, [(None, 4, 3)]),
    ],
)
def test_a_run_joins_others_where_a_scheduler_says_so(variables, joined, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    calls = []
    monkeypatch.setattr("jax.distributed.initialize", lambda *given, **_: calls.append(given))
    hosts.join(hosts.HostsConfig())
    assert calls == joined
    hosts.join(hosts.HostsConfig(num_processes=1))
    assert calls == joined
