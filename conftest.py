"""One set-up for the whole suite: platform, compilation cache, checked signatures, options and marks."""

# ruff: noqa: E402  (the environment is set before jax is imported, the hook before the ops are)
import ctypes
import functools
import gc
import inspect
import json
import logging
import os
import platform
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent

# Before anything imports jax. As environment variables they also reach the commands that tests start.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiling takes most of the suite's time, and nearly all programs are small: cache every one of them.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# Small programs that run a few times: optimizing them takes longer than it saves. Tests on a GPU are about
# the machine code that users get.
if os.environ["JAX_PLATFORMS"] == "cpu":
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# One module per program instead of up to 32: with a worker on each core there are no cores for the others.
FLAGS = ["--xla_cpu_parallel_codegen_split_count=1"]
# The compiler's newer way to emit fusions takes twice as long; from 0.11 on it is the only one.
if version("jaxlib").startswith("0.10."):
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))

import hypothesis
import hypothesis.configuration
import jax
import jaxtyping
import numpy as np
import pytest

# The shapes and dtypes in the signatures of public functions are checked here and nowhere else. To check what
# those call as well took a fifth of the suite's time. NumPy arrays, which annotations do not name, pass.
from beartype import beartype

from based_jax import mixers, models, ops


def checked(function):
    """Return the function with its signature checked in calls without NumPy arrays."""
    strict = jaxtyping.jaxtyped(typechecker=beartype)(function)

    @functools.wraps(function)
    def call(*args, **kwargs):
        plain = any(isinstance(leaf, np.ndarray | np.generic) for leaf in jax.tree.leaves((args, kwargs)))
        return (function if plain else strict)(*args, **kwargs)

    return call


for _package in (ops, mixers, models):
    for _name, _value in list(vars(_package).items()):
        if inspect.isfunction(_value) and _value.__module__.startswith("based_jax."):
            setattr(_package, _name, checked(_value))

# Tracing makes millions of objects that live on: looking for garbage among them after every 700 takes 4 % of
# a test's time.
gc.set_threshold(50_000, 20, 100)

# The same examples on every machine, nothing remembered between runs, nothing written into the checkout.
# The first example of a law compiles it: that is neither slow nor a sign of a bad strategy.
hypothesis.configuration.set_hypothesis_home_dir(ROOT / ".cache" / "hypothesis")
hypothesis.settings.register_profile(
    "suite",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    max_examples=20,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("suite")


PROGRAMS = 2 << 30
"""resident bytes above which a worker drops its compiled programs; without a limit each ends with 5 GB"""

WITHOUT_CORE = (
    *(ROOT / "papers").iterdir(),  # pytest asks about what is in a directory of `testpaths`, not about itself
    *(
        ROOT / "tests" / name
        for name in (
            "benchmarks",
            "compare",
            "docs",
            "evals",
            "experiments",
            "export",
            "published",
            "profile",
        )
    ),
)
"""directories without core tests: nothing else in the library depends on the code that they test"""


def pytest_addoption(parser):
    parser.addoption("--core", action="store_true", help="only the core tests, as `make check`")
    parser.addoption("--run-slow", action="store_true", help="the tests marked slow too")
    parser.addoption("--record", type=Path, help="directory for the versions of this run")
    # pytest has a --fixtures of its own.
    parser.addoption(
        "--fixtures-dir",
        type=Path,
        default=ROOT / "tests" / "fixtures",
        help="reference numbers and checkpoints of the torch implementation (default: %(default)s)",
    )


def pytest_configure(config):
    # Two workers may meet at one entry of the cache while it is written: the reader compiles for itself.
    for verb in ("reading", "writing"):
        config.addinivalue_line("filterwarnings", f"ignore:Error {verb} persistent compilation cache entry")


def pytest_ignore_collect(collection_path, config):
    of_all = config.args_source is not pytest.Config.ArgsSource.ARGS  # a directory that is named is collected
    return (config.getoption("--core") and of_all and collection_path in WITHOUT_CORE) or None


def pytest_collection_modifyitems(config, items):
    core, slow = config.getoption("--core"), config.getoption("--run-slow")
    later = ("release", "slow") if core else () if slow else ("slow",)
    out = [any(map(item.get_closest_marker, later)) for item in items]
    config.hook.pytest_deselected(items=[item for item, is_out in zip(items, out, strict=True) if is_out])
    items[:] = [item for item, is_out in zip(items, out, strict=True) if not is_out]
    for item in items:
        if item.get_closest_marker("gpu") and jax.default_backend() != "gpu":
            item.add_marker(pytest.mark.skip(reason="no GPU"))


RECORDED = ("jax", "jaxlib", "flax", "orbax-checkpoint")


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    """Write the versions and the outcome of a run that reached its end, if `--record` names a directory."""
    directory = config.getoption("--record")
    if directory is None or exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return
    stats = terminalreporter.stats
    record = {
        "versions": {"python": platform.python_version(), **{name: version(name) for name in RECORDED}},
        "all": config.args == config.getini("testpaths"),
        "passed": len(stats.get("passed", ())),
        "failed": [report.nodeid for name in ("failed", "error") for report in stats.get(name, ())],
    }
    directory.mkdir(parents=True, exist_ok=True)
    name = f"python-{'.'.join(platform.python_version_tuple()[:2])}.json"
    (directory / name).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Drop compiled programs after a file's last test, where a worker holds many."""
    if (nextitem is None or nextitem.path != item.path) and resident_bytes() > PROGRAMS:
        jax.clear_caches()
        gc.collect()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc does not return freed memory by itself
        if trim is not None:
            trim(0)


def resident_bytes() -> int:
    """Return the memory that this process holds, 0 where the system does not report it."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


@pytest.fixture(autouse=True)
def own_logging():
    """What a command sets in its process ends with the test."""
    loggers = [logging.getLogger(name) for name in ("based_jax.data.reading", "absl", "asyncio")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture(scope="session")
def fixtures_dir(request) -> Path:
    """The folder of reference numbers, `--fixtures-dir`."""
    return request.config.getoption("--fixtures-dir").resolve()


@pytest.fixture
def unchecked():
    """Signatures are not checked: what callers outside of the suite see."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture
def x64():
    """64-bit types. In a test with `given` use ``with jax.enable_x64(True)`` instead."""
    with jax.enable_x64(True):
        yield
