"""The display of a run: one line of 80 columns on a terminal, plain lines elsewhere."""

import contextlib
import io
import os
import re

import pytest
from rich.console import Console

from based_jax.training.run.progress import RunProgress

METRICS = {
    "loss": 2.25,
    "bits_per_byte": 3.2461,
    "perplexity": 9.5,
    "grad_norm": 0.5,
    "tokens_per_second": 12_345.0,
}


def _console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=80, soft_wrap=True, _environ={})


def _lines(console: Console) -> list[str]:
    """What was drawn, in the order of drawing, without colours and movements of the cursor."""
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue()).replace("\r", "\n").split("\n")


@pytest.mark.parametrize("steps", [1000, 20_000])
def test_a_terminal_of_80_columns_has_step_share_time_and_three_metrics(steps):
    console = _console(terminal=True)
    with RunProgress(steps, console=console) as progress:
        with progress.phase("compiling the training step", "10 to 60 s"):
            progress._bar.refresh()
        progress.tick(1)
        progress._since = (1, progress._since[1] - 100)  # 99 steps in 100 seconds
        progress.tick(100)
        progress.show(100, METRICS | {"eval_loss": 2.1234567})
        progress._bar.refresh()
    lines = _lines(console)
    assert max(map(len, lines)) <= 80
    bar = next(line for line in reversed(lines) if "━" in line)
    left = r"0:15:09|5:35:\d\d"
    assert re.match(
        rf" *100/{steps} +\d+% ━+.* +({left}) left +loss 2.25  3.246 bits/byte  12.3k tokens/s", bar
    )
    assert any("compiling the training step, usually 10 to 60 s" in line for line in lines)
    assert "compiling" not in bar
    assert "step 100  held out: loss 2.1235" in [line.rstrip() for line in lines]


def test_a_log_has_all_metrics_in_plain_lines():
    console = _console(terminal=False)
    with RunProgress(9, console=console) as progress:
        progress.tick(1)
        progress.show(1, METRICS)
        progress.event("step 1  checkpoint a/[1]")
    assert _lines(console) == [
        "step 1/9  loss 2.25  bits_per_byte 3.246  perplexity 9.5  grad_norm 0.5  tokens_per_second 12.3k",
        "step 1  checkpoint a/[1]",
        "",
    ]


def test_a_run_goes_on_without_the_reader_of_standard_error(monkeypatch):
    """Ctrl-C ends `| tee` first, and what is left to save is still to come."""
    read, write = os.pipe()
    os.close(read)
    done = []
    with contextlib.suppress(OSError), os.fdopen(write, "w") as stream:  # what is left to flush fails as well
        monkeypatch.setattr("sys.stderr", stream)
        with RunProgress(10) as progress:
            for step in (1, 2):
                progress.show(step, {"loss": 1.0})
                done.append(step)
    assert done == [1, 2]
