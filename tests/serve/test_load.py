"""A server in a process of its own under a crowd of good and bad clients."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from based_jax.convert import save_pretrained
from based_jax.data.tokenizers import ByteTokenizer
from tests.serve.load import Crowd
from tests.subprocesses import PATIENCE, environment


@pytest.mark.slow
def test_a_crowd(model, tmp_path: Path):
    """Every answer is that of the idle server, no slot is lost, memory stays, and SIGTERM ends it with 0.

    In float64, where the most likely token does not depend on the batch that a row is in.
    """
    save_pretrained(tmp_path, *model)
    ByteTokenizer().save(tmp_path)
    argv = ["-m", "based_jax", "serve", "--checkpoint", str(tmp_path), "--port", "0", "--dtype", "float64"]
    argv += ["--slots", "8", "--max-waiting", "64"]
    with subprocess.Popen(
        [sys.executable, *argv],
        env={**environment(), "JAX_ENABLE_X64": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            port = int(re.findall(r":(\d+)/", said)[0])
            before = Crowd(port, process.pid, 800, 200, seed=1).run()  # every program is there then
            report = Crowd(port, process.pid, 2000, 200, seed=2).run()
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert report.wrong == []
    assert report.counts["good"] > 1000
    assert report.rss[-1] < 1.15 * before.rss[-1], (before.rss, report.rss)  # both when all have gone
    assert process.returncode == 0
    assert err == "compiling\n"
