"""Wrong flags of every command: one line on stderr that names the flag, and exit status 2."""

import pytest

from based_jax.command import run
from benchmarks.__main__ import COMMANDS, PROGRAM, main

LONG = str(10**12)
REFUSED = {
    "opz": {"": "command = 'opz': expected one of adopt"},
    "adopt": {
        "--reports /no/such/folder": "--reports = '/no/such/folder': expected a directory with reports"
    },
    "decode": {
        "--presets 7b": "--presets = '7b': expected one of 'tiny', '360m', '1b'",
        "--parts speed": "--parts = 'speed': expected one of 'contexts'",
        "--contexts=": "--contexts = '': expected one or more",
        "--contexts 64": "--contexts = 64: expected more than --steps 64",
        "--tokens 0": "--tokens = 0: expected at least 1",
        "--models attention": "--models = 'attention': expected based among them",
    },
    "gpu": {
        "--sections fast": "--sections = 'fast': expected one of 'machine'",
        "--sections=": "--sections = '': expected one or more",
        "--minutes 0": "--minutes = 0.0: expected more than 0",
        "--interpret": "--quick",
        "--resume": "--out DIR",
        "--out /tmp --json /tmp/gpu.json": "not both",
        "--out /dev/null": "path = '/dev/null/gpu.json': expected a file that can be written",
    },
    "inspect": {
        "--registers": "Unrecognized options: --registers",
        "--match nothing": "--match = 'nothing': expected part of the name of a case",
    },
    "mixers": {
        f"--lengths {LONG}": "inputs alone",
        "--mixers mamba9": "--mixers = 'mamba9': expected one of 'attention'",
        "--mixers gla,gla": "--mixers = 'gla,gla': expected one or more, each once",
    },
    "mqar": {
        "--vmapped-runs 0": "--vmapped-runs = 0: expected at least 1",
        "--mixers mamba9": "--mixers = 'mamba9': expected one of 'based', 'attention'",
        "--pairs 32": "length = 64: expected",
        "--vocab-size 64": "vocab_size = 64: expected",
    },
    "ops": {
        "--lengths 0": "--lengths = 0: expected at least 1",
        "--lengths 12,x": "expected N,N,...",
        "--lengths=": "--lengths = '': expected one or more",
        f"--lengths {LONG}": "inputs alone",
        "--seconds nan": "--seconds = nan: expected more than 0 seconds",
        "--memory-limit 0": "more than 0 GiB",
        "--candidates flash": "--candidates = 'flash': expected one of 'taylor_xla'",
        "--json .": "json = '.': expected a file that can be written",
        "--unknown 1": "--unknown",
    },
    "static": {
        "--gpu H2OO": "--gpu = 'H2OO'",
        "--presets nothing": "--presets = 'nothing'",
        "--preset nothing --device H100": "--presets = 'nothing'",
        "--programs dance": "--programs = 'dance'",
        "--decode-batches 1,0": "--decode-batches = 0",
        "--json .": "json = '.': expected a file that can be written",
    },
    "train": {
        "--models mamba": "--models = 'mamba': expected one of",
        "--length 100": "--length = 100: expected a multiple of the keys of a window = 64",
        "--d-model 96": "--d-model = 96: expected a multiple",
    },
}
"""Command -> flags -> part of the message."""


@pytest.mark.parametrize("command", REFUSED)
def test_a_wrong_flag_is_one_line_and_status_2(command, capsys):
    for flags, message in REFUSED[command].items():
        words = [command, *flags.split()]
        with pytest.raises(SystemExit) as stop:
            run(PROGRAM, lambda words=words: main(words), cached=False)
        captured = capsys.readouterr()
        assert (stop.value.code, captured.out) == (2, ""), flags
        assert captured.err.startswith(PROGRAM)
        assert captured.err.count("\n") == 1, captured.err
        assert message in captured.err, flags


def test_checking_a_path_leaves_no_file(tmp_path):
    with pytest.raises(ValueError, match="--steps"):
        main(["decode", "--json", str(tmp_path / "a.json"), "--contexts", "64"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_shown(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    words = ("--seconds", "in seconds", "default: 30.0", "GiB", "--lengths") if command == "ops" else ("--",)
    assert all(word in text for word in words)
