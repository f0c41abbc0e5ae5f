"""A run's directory: one writer at a time, settings that are kept, files that others left or damaged."""

import pytest

from based_jax.directory_lock import sole_writer
from train import classify, demo, lm, mqar

COMMANDS = {
    "lm": (lm, ["--preset", "attn-tiny", "--data", "/no/such/data"]),
    "lm --resume": (lm, ["--resume"]),
    "demo": (demo, []),
    "mqar": (mqar, ["--mixer", "attention"]),
    "classify": (classify, ["--preset", "attn-tiny", "--data", "/no/such/data"]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_directory_in_use_is_refused_in_one_line(name, tmp_path, capsys):
    """Before anything is read or written."""
    command, flags = COMMANDS[name]
    words = [*flags, "--workdir", str(tmp_path)]
    with sole_writer(tmp_path), pytest.raises(SystemExit) as ended:
        command.command.run(command.PROG, lambda: command.main(words))
    assert ended.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"{command.PROG}: {tmp_path} is in use by process ")
    assert not list(tmp_path.iterdir())
