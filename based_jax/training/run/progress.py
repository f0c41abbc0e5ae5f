"""Show the progress of a run: a bar on the last line of a terminal, or plain lines elsewhere."""

import contextlib
import math
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Column

from based_jax import phases

HEADLINES = {
    "loss": "loss {}",
    "bits_per_byte": "{} bits/byte",
    "best_accuracy": "accuracy {}",
    "tokens_per_second": "{} tokens/s",
    "sequences_per_second": "{} rows/s",
}
"""Metric -> format in the bar; other metrics are only in the run's files."""


class _Lasting:
    """A stream whose end does not end the run: Ctrl-C also ends `| tee`, and a logout the terminal."""

    def __init__(self, stream: IO[str]):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


class RunProgress:
    """The display of a run of `steps` optimizer steps, of which `start` are done.

    On a terminal: a bar with step, share, time left and three metrics, and above it one line for each event.
    Elsewhere: one line for each logged step and each event. The console is standard error by default; a run
    goes on without it.
    """

    def __init__(self, steps: int, start: int = 0, console: Console | None = None):
        self._console = console or Console(file=cast(IO[str], _Lasting(sys.stderr)), soft_wrap=True)
        self._live = self._console.is_terminal and not self._console.is_dumb_terminal
        columns = (
            TextColumn("{task.completed:.0f}/{task.total:.0f}", table_column=Column(no_wrap=True)),
            TaskProgressColumn(table_column=Column(no_wrap=True)),
            BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4)),
            TextColumn("{task.fields[left]}", style="progress.remaining", table_column=Column(no_wrap=True)),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
        )
        options: Any = {"refresh_per_second": 4, "expand": True, "disable": not self._live}
        self._bar = Progress(*columns, console=self._console, **options)
        self._task = self._bar.add_task("", total=steps, completed=start, left="")
        self._steps, self._headline = steps, ""
        self._since: tuple[int, float] | None = None

    def __enter__(self) -> "RunProgress":
        self._bar.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.stop()

    def tick(self, step: int) -> None:
        now, left = time.perf_counter(), ""
        if self._since is None:  # the first step includes compilation
            self._since = (step, now)
        else:  # at the mean speed since this launch's first step
            done, seconds = step - self._since[0], now - self._since[1]
            left = f"{timedelta(seconds=round((self._steps - step) * seconds / done))} left"
        self._bar.update(self._task, completed=step, left=left)

    def show(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the metrics of a logged step; those of an evaluation ("eval_...") get a permanent line."""
        held_out = {name: value for name, value in metrics.items() if name.startswith("eval_")}
        training = {name: value for name, value in metrics.items() if name not in held_out}
        shown = [text.format(short(training[name])) for name, text in HEADLINES.items() if name in training]
        self._headline = "  ".join(shown[:3])
        self._bar.update(self._task, completed=step, description=self._headline)
        if not self._live and training:
            line = "  ".join(f"{name} {short(value)}" for name, value in training.items())
            self.event(f"step {step}/{self._steps}  {line}")
        if held_out:
            parts = [
                f"{name.removeprefix('eval_')} {value:.4f}" if math.isfinite(value) else f"{name} {value}"
                for name, value in held_out.items()
            ]
            self.event(f"step {step}  held out: {'  '.join(parts)}")

    @contextlib.contextmanager
    def phase(self, text: str, expected: str = "") -> Iterator[None]:
        """Show a phase other than stepping, and how long it usually takes, such as "15 s"."""
        described = f"{text}, usually {expected}" if expected else text
        self._bar.update(self._task, description=described)
        try:
            with contextlib.nullcontext() if self._live else phases.phase(described):
                yield
        finally:
            self._bar.update(self._task, description=self._headline)

    def event(self, text: str) -> None:
        """Write a permanent line above the bar."""
        self._console.print(text, highlight=False, markup=False)


def short(value: float) -> str:
    """Format a number in about six characters: 3.142, 12.3k, 4.56M."""
    if not math.isfinite(value):
        return str(value)
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.4g}"
