"""A run's directory and the config.json in it, which decides what may be resumed."""

import contextlib
import dataclasses
import json
import platform
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast, get_args, get_type_hints

from based_jax import command
from based_jax.convert.whole_file import whole_file
from based_jax.directory_lock import sole_writer
from based_jax.files import read_json
from based_jax.validate import expect
from train import hosts
from train.older_runs import todays_settings

_PACKAGES = ("jax", "flax", "optax", "orbax-checkpoint", "grain")


class RunConfig(Protocol):
    """What every training command's settings have."""

    @property
    def workdir(self) -> Path: ...
    @property
    def data(self) -> Any: ...
    @property
    def resume(self) -> bool: ...


Config = TypeVar("Config")


@contextlib.contextmanager
def sole_run(workdir: Path) -> Iterator[None]:
    """While it is open, no other run writes to `workdir`; of several processes the main one holds the lock.

    Raises:
        DirectoryInUse: another run does.
        OSError: the directory cannot be written.
    """
    with contextlib.ExitStack() as stack:

        def lock() -> int:
            stack.enter_context(sole_writer(workdir))
            return 0

        hosts.from_main(lock)
        yield


def prepare_run(
    config: RunConfig, *, model: Mapping[str, Any], data: Mapping[str, int], may_change: Collection[str]
) -> None:
    """Write config.json, or check it against the run that is continued.

    Args:
        config: the settings, a dataclass.
        model: the architecture, for people.
        data: what the data are; "crc32" tells the training data from others, "held_out_crc32" the held-out
            data, where there are some.
        may_change: settings that may differ between a run and its continuation, as they decide no loss.

    Raises:
        ValueError: the directory holds another run, or this one and `resume` is not set.
    """
    path = config.workdir / "config.json"
    settings = json.loads(json.dumps(dataclasses.asdict(config), default=str))  # pyright: ignore[reportArgumentType]
    settings.pop("hosts", None)  # of this launch, not of the run
    if has_checkpoints(config.workdir):
        expect(
            config.resume, "workdir", str(config.workdir),
            "a new directory, or --resume: this one holds checkpoints of a run",
        )  # fmt: skip
        before = read_config(path)
        for name, value in settings.items():
            old = before["train"].get(name, value)
            expect(name in may_change or old == value, name, value, f"{old!r} as in the run that is resumed")
        expect_same_data(config, data)
        if before["train"].get("steps") != settings.get("steps") and hosts.is_main():
            before["train"]["steps"] = settings["steps"]
            write_config(path, before)
        return
    if not hosts.is_main():
        return
    config.workdir.mkdir(parents=True, exist_ok=True)
    versions = {name: metadata.version(name) for name in _PACKAGES}
    content = {
        "model": model,
        "train": settings,
        "data": data,
        "versions": {"python": platform.python_version(), **versions},
    }
    write_config(path, content)


def expect_same_data(config: RunConfig, data: Mapping[str, int]) -> None:
    """Check `data`, as in `prepare_run`, against those of the run in `config.workdir`.

    Raises:
        ValueError: they are others.
    """
    before = read_config(config.workdir / "config.json")["data"]
    was, now = (", ".join(f"{name} {values[name]}" for name in values) for values in (before, data))
    for checksum, kind in (("crc32", "training"), ("held_out_crc32", "held-out")):
        expect(
            before.get(checksum, data.get(checksum)) == data.get(checksum), "data", str(config.data),
            f"the same {kind} text as in the run that is resumed ({was}), but it has changed ({now})",
        )  # fmt: skip


def has_checkpoints(workdir: Path) -> bool:
    """Whether a run in this directory has begun to write a checkpoint."""
    return any((workdir / "checkpoints").glob("[0-9]*"))


def saved_run(settings: type[Config], workdir: Path) -> Config | None:
    """The settings of the run in a directory, from its config.json; None without one.

    Raises:
        ValueError: the file cannot be read, or is of another command.
    """
    path = workdir / "config.json"
    if not path.exists():
        return None
    try:
        return _settings(settings, read_config(path)["train"], "train")
    except (ValueError, TypeError) as error:
        message = str(error)
        raise ValueError(message if str(path) in message else f"{path}: {message}") from error


def parse_run(
    settings: type[Config],
    argv: Sequence[str] | None,
    prog: str,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> Config:
    """Flags to `settings`, a dataclass; with --resume those of the run in --workdir are the defaults.

    `groups` are those of `command.parse`.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    workdir, default = command.find_value(given, "--workdir"), None
    switches = [word for word in given if word in ("--resume", "--no-resume")]
    if workdir is not None and switches[-1:] == ["--resume"]:
        default = saved_run(settings, Path(workdir))
    return command.parse(settings, given, prog=prog, default=default, groups=groups)


def _settings(kind: type[Config], values: Any, name: str) -> Config:
    """The dataclass `kind` from the values of a config.json, with defaults for what is not there.

    Raises:
        ValueError, TypeError: an entry that is no field or of another type, or a value that makes no sense.
    """
    expect(isinstance(values, dict), name, values, "the settings of a run")
    hints = get_type_hints(kind)
    strange = sorted(set(values) - set(hints))
    expect(not strange, name, strange, f"settings of {kind.__module__}")
    made = {}
    for field, value in values.items():
        hint = hints[field]
        if dataclasses.is_dataclass(hint):
            made[field] = _settings(cast(type, hint), value, field)
            continue
        kinds = get_args(hint) or (hint,)
        allowed = {type_ for kind_ in kinds for type_ in _JSON_TYPES.get(kind_, (kind_,))}
        expected = " or ".join(sorted(type_.__name__ for type_ in allowed))
        expect(type(value) in allowed, field, value, f"a value of type {expected}")
        made[field] = Path(value) if hint is Path else value
    return kind(**made)


_JSON_TYPES: dict[type, tuple[type, ...]] = {Path: (str,), float: (float, int)}
"""type of a setting -> types in JSON, where they differ"""


def write_config(path: Path, content: Mapping[str, Any]) -> None:
    """Write a run's config.json, whole or not at all."""
    with whole_file(path) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())


def read_config(path: Path, needed: Sequence[str] = ("train", "data")) -> dict[str, Any]:
    """A run's config.json, with today's names of the settings.

    Args:
        path: of the file.
        needed: entries that it must have; each is an object.

    Raises:
        ValueError: it cannot be read, or is no such file.
    """
    expect(path.is_file(), "config.json", str(path), "a file: that of the run in this directory")
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    entries = content if isinstance(content, dict) else {}
    is_run = all(isinstance(entries.get(name), dict) for name in needed)
    expect(is_run, str(path), sorted(entries), f"a run's config.json, with the objects {', '.join(needed)}")
    return {**content, "train": todays_settings(content["train"])}
