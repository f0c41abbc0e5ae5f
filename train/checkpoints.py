"""Orbax checkpoints of a run: atomic, asynchronous, the newest N kept, data position included."""

import json
from pathlib import Path
from typing import Any, TypeVar

import orbax.checkpoint as ocp

State = TypeVar("State")


class Checkpoints:
    """The checkpoints below ``workdir/checkpoints``.

    A checkpoint becomes visible only when it is complete; a process that dies while writing leaves the one
    before intact.
    """

    def __init__(self, workdir: Path, keep: int = 3):
        self.directory = (workdir / "checkpoints").absolute()
        self._manager = ocp.CheckpointManager(
            self.directory,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep, create=True, cleanup_tmp_directories=True, enable_async_checkpointing=True
            ),
        )

    @property
    def latest_step(self) -> int | None:
        """Step of the newest complete checkpoint."""
        return self._manager.latest_step()

    def save(self, step: int, state: Any, data: dict[str, Any]) -> None:
        """Start writing a pytree and JSON data; arrays are copied first, so the caller may donate them."""
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state),  # pyright: ignore[reportCallIssue]
                data=ocp.args.JsonSave({"state": json.dumps(data)}),  # pyright: ignore[reportCallIssue]
            ),
        )

    def restore(self, step: int, abstract: State) -> tuple[State, dict[str, Any]]:
        """Read a checkpoint into the shapes and shardings of `abstract`.

        Raises:
            ValueError: the checkpoint does not fit the model or cannot be read.
        """
        try:
            restored = self._manager.restore(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardRestore(abstract),  # pyright: ignore[reportCallIssue]
                    data=ocp.args.JsonRestore(),
                ),
            )
        except (ValueError, KeyError, OSError, TypeError) as error:
            raise ValueError(
                f"checkpoint {self.directory / str(step)} cannot be restored: {error}"
            ) from error
        return restored["state"], json.loads(restored["data"]["state"])

    def position(self, step: int) -> dict[str, Any]:
        """The data of a checkpoint alone, for what must be known before `restore`."""
        args = ocp.args.Composite(data=ocp.args.JsonRestore())  # pyright: ignore[reportCallIssue]
        return json.loads(self._manager.restore(step, args=args)["data"]["state"])

    def wait(self) -> None:
        """Block until what was saved is on disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Finish writing and release the manager's threads."""
        self._manager.wait_until_finished()
        self._manager.close()
