"""``based-jax`` lists and runs every command."""

import importlib.util
import re
import subprocess
import sys

import pytest

import based_jax
from based_jax import __main__ as console
from tests.floors import ROOT
from tests.subprocesses import environment, run_module

STARTS = re.compile(r'^if __name__ == "__main__":\n    (\w+\.)?run\(', re.M)
COMMANDS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
    for package in ("based_jax", "papers", "train", "benchmarks", "pallas_kernels")
    for path in (ROOT / package).rglob("*.py")
    if STARTS.search(path.read_text())
)
"""what ``python -m`` runs"""
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_in_a_process(name):
    """Its last lines: arguments come from the shell, errors go to it as one line and the status."""
    done = run_module(name, "--no-such-flag")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    known = console.console_commands(ROOT / "based_jax")
    typed = {
        module.replace("based_jax.training.commands", "train"): words for words, (module, _) in known.items()
    }
    words = typed.get(name, typed.get(f"{name}.__main__"))
    expected = f"based-jax {words}: " if words else f"python -m {name}: "
    assert done.stderr.splitlines()[-1].startswith(expected)
    assert "Traceback" not in done.stderr


@pytest.mark.release
def test_a_closed_pipe_ends_a_command_without_a_message():
    code = "from based_jax.command import run; run('name', lambda: print('y' * 2**20), cached=False)"
    by_rich = "import rich; " + code.replace("print('y' * 2**20)", "rich.print('y')")  # it catches the error
    for arguments in (["-c", code], ["-c", by_rich], ["-m", "based_jax", "--help"]):
        with subprocess.Popen([sys.executable, *arguments], **PIPES, env=environment()) as process:
            process.stdout.close()
            assert (process.stderr.read(), process.wait()) == (b"", 141)


@pytest.mark.release
def test_streams_of_another_encoding_and_closed_ones():
    code = "from based_jax.command import run; run('name', lambda: print('é'), cached=False)"
    ascii_only = environment() | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], **PIPES, env=ascii_only)
    assert (done.stdout, done.stderr, done.returncode) == (b"\\xe9\n", b"", 0)
    closed = ["sh", "-c", '"$0" -m based_jax --version 2>&-', sys.executable]
    done = subprocess.run(closed, stdout=subprocess.PIPE, env=environment())
    assert (done.stdout.decode(), done.returncode) == (f"{based_jax.__version__}\n", 0)


@pytest.mark.release
def test_a_platform_without_a_device_is_one_line():
    code = "import jax; from based_jax.command import run; run('name', jax.devices, cached=False)"
    there = environment() | {"JAX_PLATFORMS": "rocm"}
    done = subprocess.run([sys.executable, "-c", code], **PIPES, env=there)
    message = b"name: JAX_PLATFORMS = 'rocm': expected platforms of which JAX finds a device here\n"
    assert (done.stderr, done.returncode) == (message, 2)


def run_console(capsys, monkeypatch, *words):
    """Status, standard output and standard error of ``based-jax words...``"""
    monkeypatch.setattr("sys.argv", ["based-jax", *words])
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(console.main())
    return ended.value.code, *capsys.readouterr()


def test_the_console_command_runs_every_command():
    known = console.console_commands(ROOT / "based_jax")
    names = ["compare", "convert", "export", "generate", "profile", "serve"]
    names += [f"train {name}" for name in ("lm", "mqar", "synthetic", "classify", "demo")]
    names += [f"eval {name}" for name in ("perplexity", "recall", "lm-eval")]
    names += [f"experiments {name}" for name in ("mqar-tradeoff", "mqar-pairs", "tasks")]
    assert set(names) <= set(known)
    assert not {"published", "based_jax"} & set(known)
    for name, (module, purpose) in known.items():
        assert importlib.util.find_spec(module), name
        assert purpose, name


def test_the_console_command_lists_them_and_a_group_its_own(capsys, monkeypatch):
    for word in ([], ["--help"], ["-h"]):
        status, out, _ = run_console(capsys, monkeypatch, *word)
        assert status == 0
        assert re.search("^train lm +Train a language model$", out, re.M)
        assert re.search("^generate +Continue a text$", out, re.M)
        assert all(len(line) <= 80 for line in out.split("\n\n", 1)[1].rpartition("\n\n")[0].splitlines())
    status, out, _ = run_console(capsys, monkeypatch, "train", "--help")
    assert status == 0
    assert "\ntrain mqar " in out
    assert "\ngenerate " not in out
    assert run_console(capsys, monkeypatch, "--version") == (0, f"{based_jax.__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nonsense"], "nonsense: expected one of compare, convert, export, "),
        (["generat", "--prompt", "a"], "did you mean 'generate'?"),
        (["train", "ml"], "train ml: expected one of train classify, "),
        (["train", "mqr", "--steps"], "did you mean 'train mqar'?"),
        (["--nonsense"], "--nonsense: expected one of compare, "),
    ],
)
def test_an_unknown_command_is_one_line(words, message, capsys, monkeypatch):
    status, out, error = run_console(capsys, monkeypatch, *words)
    assert (status, out) == (2, "")
    assert error.startswith("based-jax: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["train lm", "eval perplexity", "experiments mqar-pairs"])
def test_messages_begin_with_the_words_that_started_the_command(name, capsys, monkeypatch):
    status, out, error = run_console(capsys, monkeypatch, *name.split(), "--no-such-flag")
    assert (status, out) == (2, "")
    assert error.startswith(f"based-jax {name}: ")
    assert error.count("\n") == 1
    status, out, _ = run_console(capsys, monkeypatch, *name.split(), "--help")
    assert status == 0
    assert f"usage: based-jax {name} " in out
    status, _, error = run_console(capsys, monkeypatch, *name.replace("-", "_").split(), "--no-such-flag")
    assert error.startswith(f"based-jax {name}: ")  # an underscore stands for a hyphen
