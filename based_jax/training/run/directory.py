"""Manage a run's directory and its config.json, which determines what may be resumed."""

import contextlib
import dataclasses
import json
import platform
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from based_jax import command
from based_jax.directory_lock import sole_writer
from based_jax.files import read_json, remove_unfinished, write_json
from based_jax.training.devices import hosts
from based_jax.training.recipes import flag_words
from based_jax.validate import expect

_PACKAGES = ("jax", "flax", "optax", "orbax-checkpoint", "grain")

Config = TypeVar("Config")


@contextlib.contextmanager
def sole_run(workdir: Path, resume: bool) -> Iterator[None]:
    """Keep other runs from writing to `workdir`; with several processes the main one holds the lock.

    Errors: see `based_jax.directory_lock.sole_writer`; ValueError if it has checkpoints that the run does not
    resume.
    """
    with contextlib.ExitStack() as stack:
        hosts.from_main(lambda: stack.enter_context(sole_writer(workdir)))
        expected = "a new directory, or --resume: this one holds checkpoints of a run"
        expect(resume or not has_checkpoints(workdir), "workdir", str(workdir), expected)
        if hosts.is_main():
            remove_unfinished(workdir / "model")
        yield


_OF_DEVICE = {"dtype"}
"""Fields of a model that depend on the device, if the flags do not set them."""


def prepare_run(
    config: Any, *, model: Mapping[str, Any], data: Mapping[str, int], may_change: Collection[str]
) -> None:
    """Write config.json, or check the settings against it when a run is resumed.

    Args:
        config: settings of a training command, a dataclass with at least workdir, data and resume.
        data: facts about the data, with checksums "crc32" of training and "held_out_crc32" of held-out data.
        may_change: settings that may change on resuming, as they do not affect losses.

    Raises:
        ValueError: the directory holds another run, or a config.json that is not that of a run.
    """
    path = config.workdir / "config.json"
    settings = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    settings.pop("hosts", None)  # belongs to this launch, not to the run
    if has_checkpoints(config.workdir):
        before = read_config(path, ("train", "data", "model"))
        kept = "as in the run that is resumed"
        expect_same_settings(_flat(settings), _flat(before["train"]), may_change, kept)
        expect_same_settings(json.loads(json.dumps(model)), before["model"], _OF_DEVICE, kept)
        _expect_same_data(str(config.data), data, before["data"])
        if before["train"].get("steps") != settings.get("steps") and hosts.is_main():
            before["train"]["steps"] = settings["steps"]
            write_json(path, before)
        return
    if path.exists():
        read_config(path)  # refuses that of anything else, such as a model, which would be lost
    if not hosts.is_main():
        return
    if config.resume and not path.exists():
        print(f"{config.workdir}: nothing to resume, so a new run begins", file=sys.stderr)
    config.workdir.mkdir(parents=True, exist_ok=True)
    write_json(path, {"model": model, "train": settings, "data": data, "versions": versions(*_PACKAGES)})


def versions(*packages: str) -> dict[str, str]:
    """Return versions of Python and of installed packages."""
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}}


def expect_same_settings(
    settings: Mapping[str, Any], before: Mapping[str, Any], may_change: Collection[str], kept: str
) -> None:
    """Check the settings of a resumed run against `before`, which may lack some; `kept` is for errors."""
    for name, value in settings.items():
        old = before.get(name, value)
        expect(name in may_change or old == value, name, value, f"{old!r} {kept}")


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all flags by name; those of the optimizer, for one, are saved as an object."""
    inner = [value for value in settings.values() if isinstance(value, dict)]
    flat = {name: value for values in (settings, *inner) for name, value in values.items()}
    return {name: value for name, value in flat.items() if not isinstance(value, dict)}


def _expect_same_data(name: str, data: Mapping[str, int], before: Mapping[str, int]) -> None:
    """Check `data` (see `prepare_run`) against those of the run that is resumed."""
    was, now = (", ".join(f"{fact} {values[fact]}" for fact in values) for values in (before, data))
    for checksum, kind in (("crc32", "training"), ("held_out_crc32", "held-out")):
        is_same = before.get(checksum, data.get(checksum)) == data.get(checksum)
        expected = f"the same {kind} text as in the run that is resumed ({was}), but it has changed ({now})"
        expect(is_same, "data", name, expected)


def has_checkpoints(workdir: Path) -> bool:
    """Return whether a run in this directory has started to write a checkpoint."""
    return any((workdir / "checkpoints").glob("[0-9]*"))


def parse_run(settings: type[Config], argv: Sequence[str] | None, prog: str) -> Config:
    """Parse flags like `command.parse`; with --resume those of the run in --workdir come before them.

    SystemExit: also if the saved settings are not those of such a run; the message names the file.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    workdir = command.find_value(given, "--workdir")
    switches = [word for word in given if word in ("--resume", "--no-resume")]
    path = Path(workdir or "") / "config.json"
    if workdir is not None and switches[-1:] == ["--resume"] and path.exists():
        saved = read_config(path)["train"]
        words = flag_words(_flat(saved))
        command.parse(settings, words, prog=f"{prog}: {path}")
        given = [*words, *given]
    return command.parse(settings, given, prog=prog)


def read_config(path: Path, needed: Sequence[str] = ("train", "data")) -> dict[str, Any]:
    """Read a run's config.json; ValueError without the `needed` objects."""
    expect(path.is_file(), "config.json", str(path), "a file: that of the run in this directory")
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    entries = content if isinstance(content, dict) else {}
    is_run = all(isinstance(entries.get(name), dict) for name in needed)
    expect(is_run, str(path), sorted(entries), f"a run's config.json, with the objects {', '.join(needed)}")
    return content
