"""The wheel: two packages and their data, whose commands run without a checkout."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import based_jax as bj
from tests.serve.client import Client
from tests.subprocesses import ROOT

OUTSIDE = Path(__file__).parent / "outside_package"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


def built(source: Path, folder: Path) -> Path:
    """What `pip wheel .` builds, with the hatchling of this environment."""
    pip("wheel", source, "--no-deps", "--no-build-isolation", "--wheel-dir", folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def commands(wheel, tmp_path_factory) -> Path:
    """The commands of an environment with the wheel, a package of mixers, and what this one has."""
    root = tmp_path_factory.mktemp("environment")
    venv.create(root, with_pip=False, symlinks=True)
    site = sysconfig.get_path("purelib", vars={"base": str(root)})
    outside = built(OUTSIDE, tmp_path_factory.mktemp("outside"))
    pip("--python", root, "install", "--no-deps", "--no-index", wheel, outside)
    # Packages of a directory in a .pth file count, its own .pth files do not: editable installs do not count.
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return root / "bin"


def pip(*words: object) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, words)]
    subprocess.run(command, check=True, cwd=ROOT, timeout=600)


def environment() -> dict[str, str]:
    """This process's, without what makes a checkout importable."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.mark.release
def test_it_holds_two_packages_and_their_data(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"based_jax", "pallas_kernels"}
    assert len(tops) == 3
    here = {
        str(path.relative_to(ROOT))
        for package in ("based_jax", "pallas_kernels")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert here == {name for name in names if not name.split("/")[0].endswith(".dist-info")}
    data = ["py.typed", "recipes/based-360m-10b.toml", "published/data/tables.toml"]
    assert {f"based_jax/{name}" for name in data} <= here


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_all_extras_resolve_together(wheel, tmp_path, version):
    """For each Python of the classifiers; nothing is installed."""
    found = subprocess.run([ROOT / ".ci" / "find-python", version], stdout=subprocess.PIPE, text=True)
    if found.returncode:
        pytest.skip(f"no Python {version}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = ",".join(project["optional-dependencies"])
    where = ["--python", found.stdout.strip(), "install", "--dry-run", "--ignore-installed"]
    pip(*where, "--target", tmp_path, f"{wheel}[{extras}]")


@pytest.fixture
def run(commands, tmp_path) -> Callable[..., tuple[str, str]]:
    """Run a command in a directory with a text; return its standard output and standard error."""
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 300)

    def call(*words: object, status: int = 0) -> tuple[str, str]:
        command = [str(commands / "based-jax"), *map(str, words)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=600, cwd=tmp_path, env=environment()
        )
        assert done.returncode == status, done.stderr
        return done.stdout, done.stderr

    return call


TWO_STEPS = ["--batch-size", 2, "--length", 64, "--steps", 2, "--eval-every", 0, "--data", "text.txt"]


@pytest.mark.slow
def test_commands_run_without_a_checkout(commands, run, tmp_path):
    options = {"cwd": tmp_path, "env": environment(), "stdout": subprocess.PIPE, "text": True}

    look = "import based_jax, importlib.util as u; print(u.find_spec('train'), based_jax.__file__)"
    where = subprocess.run([str(commands / "python"), "-c", look], check=True, **options).stdout
    assert where.startswith(f"None {commands.parent}")

    run("train", "lm", *TWO_STEPS, "--preset", "based-tiny", "--log-every", 1, "--workdir", "run")
    steps = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in steps] == [1, 2]
    sampled, _ = run("generate", "--checkpoint", "run", "--prompt", "to be", "--max-new-tokens", 4)
    assert sampled.startswith("to be")
    run("convert", "run/model", "converted")
    assert (tmp_path / "converted" / "model.safetensors").exists()
    recipe = ["--recipe", "recipes/based-360m-10b.toml", "--data", "text.txt", "--workdir", "paper"]
    _, wrong = run("train", "lm", *recipe, "--tokenizer", "missing.json", status=2)
    assert wrong.startswith("based-jax train lm: ")
    assert "missing.json" in wrong

    serve = [str(commands / "based-jax"), "serve", "--checkpoint", "run", "--port", "0"]
    with subprocess.Popen(serve, **options) as server:
        try:
            assert server.stdout is not None
            port = re.fullmatch(r"run: http://127\.0\.0\.1:(\d+)/\n", server.stdout.readline())
            assert port is not None
            client = Client(int(port[1]))
            client.wait_until_up()
            assert client.complete(prompt="to be", max_tokens=4)["usage"]["completion_tokens"] == 4
        finally:
            server.terminate()
    assert server.returncode == 0


@pytest.mark.slow
def test_a_mixer_of_an_installed_package_trains_decodes_and_exports(run, tmp_path):
    config = bj.presets.get("based-tiny").with_mixer("retnet", num_heads=2).to_dict()
    config |= {"schedule": "A", "mixers": {"A": {"mixer": "min_gru"}}}
    (tmp_path / "model.json").write_text(json.dumps(config))
    run("train", "lm", *TWO_STEPS, "--preset", "model.json", "--workdir", "run")
    prompt = ["--prompt", "to be", "--max-new-tokens", 4]
    sampled, _ = run("generate", "--checkpoint", "run", *prompt)
    assert sampled.startswith("to be")
    run("export", "--checkpoint", "run", "--out", "exported", "--platforms", "cpu")
    assert (tmp_path / "exported" / "decode.jaxexport").exists()
