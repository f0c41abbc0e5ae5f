"""``python -m based_jax`` and ``python -m train`` list every command."""

import importlib.util
import re

import pytest

from based_jax import command_list
from tests.conftest import ROOT
from tests.subprocesses import run_module

PACKAGES = ["based_jax", "train"]

STARTS = re.compile(r'^if __name__ == "__main__":\n    (\w+\.)?run\(', re.M)
COMMANDS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
    for package in (*PACKAGES, "benchmarks", "pallas_kernels")
    for path in (ROOT / package).rglob("*.py")
    if STARTS.search(path.read_text())
)
"""what ``python -m`` runs"""


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_in_a_process(name):
    """Its last lines: arguments come from the shell, errors go to it as one line and the status."""
    done = run_module(name, "--no-such-flag")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"python -m {name}: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_every_command_has_a_line_that_fits(package, capsys):
    assert command_list.main(package, ROOT / package, "Remarks.", []) == 0
    out = capsys.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines())
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
        for path in (ROOT / package).rglob("*.py")
        if "command.run(" in path.read_text() and path.name not in ("command.py", "study.py")
    ]
    assert len(modules) >= 5
    for module in modules:
        assert re.search(rf"^{re.escape(module)} +[A-Z]", out, flags=re.M), module


@pytest.mark.parametrize("package", PACKAGES)
def test_what_is_listed_exists(package):
    found = command_list.commands(package, ROOT / package)
    assert all(importlib.util.find_spec(name) for name in found)
    assert all(found.values())


def test_a_wrong_argument_names_the_command_that_was_meant(capsys):
    with pytest.raises(SystemExit) as ended:
        command_list.main("based_jax", ROOT / "based_jax", "", ["generat", "--prompt", "a"])
    assert ended.value.code == 2
    message = "generat: expected no arguments: run python -m based_jax.generate\n"
    assert capsys.readouterr().err == f"python -m based_jax: {message}"
