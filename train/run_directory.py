"""A run's directory and the config.json in it, which decides what may be resumed."""

import contextlib
import dataclasses
import json
import platform
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_type_hints

from based_jax import command
from based_jax.convert.whole_file import whole_file
from based_jax.directory_lock import sole_writer
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
    if any((config.workdir / "checkpoints").glob("[0-9]*")):
        expect(
            config.resume, "workdir", str(config.workdir),
            "a new directory, or --resume: this one holds checkpoints of a run",
        )  # fmt: skip
        before = _read(path)
        for name, value in settings.items():
            old = before["train"].get(name, value)
            expect(name in may_change or old == value, name, value, f"{old!r} as in the run that is resumed")
        expect_same_data(config, data)
        if before["train"].get("steps") != settings.get("steps") and hosts.is_main():
            before["train"]["steps"] = settings["steps"]
            _write(path, before)
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
    _write(path, content)


def expect_same_data(config: RunConfig, data: Mapping[str, int]) -> None:
    """Check `data`, as in `prepare_run`, against those of the run in `config.workdir`.

    Raises:
        ValueError: they are others.
    """
    before = _read(config.workdir / "config.json")["data"]
    was, now = (", ".join(f"{name} {values[name]}" for name in values) for values in (before, data))
    for checksum, kind in (("crc32", "training"), ("held_out_crc32", "held-out")):
        expect(
            before.get(checksum, data.get(checksum)) == data.get(checksum), "data", str(config.data),
            f"the same {kind} text as in the run that is resumed ({was}), but it has changed ({now})",
        )  # fmt: skip


def saved_settings(workdir: Path) -> dict[str, Any] | None:
    """The "train" entry of a run's config.json, or None where no run has a checkpoint.

    Raises:
        ValueError: the file cannot be read.
    """
    has_run = any((workdir / "checkpoints").glob("[0-9]*"))
    return _read(workdir / "config.json")["train"] if has_run else None


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
    default = None
    if "--resume" in given and "--workdir" in given[:-1]:
        path = Path(given[given.index("--workdir") + 1]) / "config.json"
        if path.exists():
            saved = _read(path)["train"]
            known = {field.name for field in dataclasses.fields(settings)}  # pyright: ignore[reportArgumentType]
            strange = sorted(set(saved) - known)
            expect(not strange, str(path), strange, f"a run of {prog}")
            saved["workdir"] = Path(saved["workdir"])
            for name, kind in get_type_hints(settings).items():
                if dataclasses.is_dataclass(kind) and name in saved:
                    saved[name] = kind(**saved[name])  # pyright: ignore[reportCallIssue]
            default = settings(**saved)
    return command.parse(settings, given, prog=prog, default=default, groups=groups)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    with whole_file(path) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    expect("train" in content and "data" in content, str(path), sorted(content), "a run's config.json")
    return {**content, "train": todays_settings(content["train"])}
