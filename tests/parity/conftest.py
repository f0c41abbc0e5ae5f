"""``pytest tests/parity --fixtures DIR``: where the reference numbers are."""

from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """Read `--fixtures DIR` as `--fixtures-dir DIR`.

    pytest has a flag of the same name that lists its own fixtures. Followed by a directory it is ours: pytest
    has taken the directory for one of tests by now.
    """
    given = [str(argument) for argument in config.invocation_params.args]
    if "--fixtures" not in given[:-1]:
        return
    name = given[given.index("--fixtures") + 1]
    directory = Path(config.invocation_params.dir, name)
    if directory.is_dir() and name in config.args:
        config.option.showfixtures = False
        config.option.fixtures_dir = directory
        config.args.remove(name)
