"""Match globs like Python's, visiting every directory once, however many paths lead to it.

`glob.glob` follows links to directories: a link to its own directory yields every file 41 times, and two such
links never terminate. It also expands each ``**`` of a pattern separately, so that ``**/**/**/*`` visits a
directory once for every way to split its path among them.
"""

import fnmatch
import os
from collections.abc import Iterator

RECURSIVE = "**"


def match_files(pattern: str) -> Iterator[str]:
    """Yield the matching files, each once, in no particular order.

    The components of `pattern` may have the wildcards of `fnmatch`. ``**`` as a component stands for any
    number of directories, except links, and as the last one also for the files in them. A name that starts
    with a dot matches only a component that does, too.
    """
    root = os.sep if os.path.isabs(pattern) else ""
    parts = [part for part in pattern.split(os.sep) if part]
    if parts and parts[-1] == RECURSIVE:
        parts.append("*")
    visited: set[tuple[str, int]] = set()
    pending = [(root, 0)]
    while pending:
        directory, index = pending.pop()
        if (state := (identity(directory), index)) in visited:
            continue
        visited.add(state)
        part, is_last = parts[index], index == len(parts) - 1
        if part == RECURSIVE:
            pending.append((directory, index + 1))
            pending += [
                (os.path.join(directory, entry.name), index)
                for entry in _entries(directory)
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
            ]
            continue
        for path in _matching(directory, part):
            if not is_last and os.path.isdir(path):
                pending.append((path, index + 1))
            elif is_last and os.path.isfile(path):
                yield path


def _matching(directory: str, part: str) -> Iterator[str]:
    """Yield the paths in a directory whose names match one component of a pattern."""
    if not any(wildcard in part for wildcard in "*?["):
        yield os.path.join(directory, part)
        return
    for entry in _entries(directory):
        if fnmatch.fnmatch(entry.name, part) and (part.startswith(".") or not entry.name.startswith(".")):
            yield os.path.join(directory, entry.name)


def _entries(directory: str) -> list[os.DirEntry[str]]:
    """List a directory's entries; none if it cannot be listed."""
    try:
        with os.scandir(directory or os.curdir) as entries:
            return list(entries)
    except OSError:
        return []


def identity(path: str) -> str:
    """Return the same string for every path to a file or directory; the path itself if nothing is there."""
    try:
        status = os.stat(path or os.curdir)
    except OSError:
        return path
    return f"{status.st_dev}:{status.st_ino}"
