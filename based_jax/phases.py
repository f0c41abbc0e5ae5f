"""Report on stderr what a command is doing while its user waits."""

import contextlib
import math
import sys
import threading
from collections.abc import Iterator

PATIENCE = 1.0  # seconds before a phase is worth a line in a log


@contextlib.contextmanager
def phase(text: str, *, patience: float | None = None) -> Iterator[None]:
    """Report `text` on stderr while the block runs, such as "compiling the step, usually 15 s".

    A terminal shows a line with the seconds so far, which is removed at the end. Elsewhere one permanent line
    is printed, and only if the block lasts for `patience` seconds, so fast phases do not clutter logs and
    one-line errors. The block may print whole lines but no progress bar. By default `patience` is `PATIENCE`;
    0 logs at once, `math.inf` only on a terminal.
    """
    patience = PATIENCE if patience is None else patience
    with _transient(text) if sys.stderr.isatty() else _plain(text, patience):
        yield


@contextlib.contextmanager
def _plain(text: str, patience: float) -> Iterator[None]:
    if patience == 0:
        print(text, file=sys.stderr, flush=True)
    if patience in (0, math.inf):
        yield
        return
    late = threading.Timer(patience, print, [text], {"file": sys.stderr, "flush": True})
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()


@contextlib.contextmanager
def _transient(text: str) -> Iterator[None]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        progress.add_task(escape(text), total=None)
        yield
