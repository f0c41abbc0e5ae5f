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

    On a terminal a line with the seconds so far, which is gone afterwards. Elsewhere one line that stays, and
    only if the block lasts for `patience` seconds: logs of fast phases and one-line errors stay as they are.
    The block may print whole lines, but draw no progress bar. By default `patience` is `PATIENCE`; 0 logs at
    once, `math.inf` on a terminal alone.
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
