"""Where commands keep compiled programs, and what happens where they cannot."""

import os

import jax
import pytest

from based_jax import compilation_cache
from based_jax.compilation_cache import default_directory, keep_programs, prune
from tests.subprocesses import run_python

SETTINGS = [
    "jax_compilation_cache_dir",
    "jax_enable_compilation_cache",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A process whose user chose nothing, with a home of its own; nothing is compiled meanwhile."""
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    for name in SETTINGS:
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(compilation_cache, "_hide_false_alarms", lambda: None)
    jax.config.update("jax_compilation_cache_dir", None)
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)


def test_programs_are_kept_below_the_users_cache(home, monkeypatch):
    keep_programs()
    directory = default_directory()
    assert jax.config.jax_compilation_cache_dir == str(directory)
    assert directory.parent == home / ".cache" / "based_jax" / "compilation"
    assert list(directory.iterdir()) == []
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "elsewhere"))
    assert default_directory() == home / "elsewhere" / "based_jax" / "compilation" / directory.name


def test_the_users_own_settings_win(home, monkeypatch):
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "3")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 3.0)
    keep_programs()
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 3.0
    jax.config.update("jax_compilation_cache_dir", "theirs")
    keep_programs()
    assert jax.config.jax_compilation_cache_dir == "theirs"
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_enable_compilation_cache", False)
    keep_programs()
    assert jax.config.jax_compilation_cache_dir is None


def test_a_home_that_cannot_be_written_is_said_in_one_line(home, monkeypatch, capsys):
    (home / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "file"))
    keep_programs()
    assert jax.config.jax_compilation_cache_dir is None
    said = capsys.readouterr().err
    assert said.startswith("compiled programs are not kept (")
    assert said.count("\n") == 1
    assert "set JAX_COMPILATION_CACHE_DIR" in said


def test_the_least_recently_used_programs_are_removed(tmp_path):
    for age, name in enumerate(["new", "middle", "old"]):
        path = tmp_path / name / "program"
        path.parent.mkdir()
        path.write_bytes(bytes(10))
        os.utime(path, (1000 - age, 0))
    prune(tmp_path, 20)
    assert {path.parent.name for path in tmp_path.glob("*/program")} == {"new", "middle"}
    prune(tmp_path, 9)
    assert not list(tmp_path.glob("*/program"))


@pytest.mark.release
def test_programs_that_were_cut_short_are_compiled_again_without_a_word(tmp_path):
    said = run_python(f"""
import os, warnings
for name in {SETTINGS}:
    os.environ.pop(name.upper(), None)
os.environ["XDG_CACHE_HOME"] = {str(tmp_path)!r}
import jax
from based_jax.compilation_cache import default_directory, keep_programs
warnings.simplefilter("error")
keep_programs()
for _ in range(2):
    print(jax.jit(lambda x: 2 * x)(21))
    jax.clear_caches()
    for path in default_directory().glob("*-cache"):
        path.write_bytes(path.read_bytes()[:-9])
print(len(list(default_directory().glob("jit__lambda*"))))
""")
    assert said.split() == ["42", "42", "1"]
