"""Models on the hub, by a stand-in of its HTTP interface: there and back, pinned, interrupted, damaged."""

import sys
import tempfile
from pathlib import Path
from typing import Any

import chex
import pytest

pytest.importorskip("huggingface_hub")
import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.utils import disable_progress_bars

import based_jax as bj
from based_jax.convert import __main__ as convert
from based_jax.convert import hub
from based_jax.convert.pretrained import load_pretrained, save_pretrained
from tests.commands import run_here
from tests.convert.hub_server import Hub, Refused, serving
from tests.convert.random_models import drawn, small
from tests.convert.torch_files import CHECKPOINTS

NAME = "owner/small"


@pytest.fixture(scope="module")
def server():
    with serving() as found:
        yield found


@pytest.fixture
def remote(server, tmp_path, monkeypatch) -> Hub:
    """An empty hub that huggingface_hub talks to, with an empty cache."""
    stored, address = server
    stored.__init__()
    for name, value in {
        "ENDPOINT": address,
        "HUGGINGFACE_CO_URL_TEMPLATE": address + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_HUB_DISABLE_XET": True,  # the stand-in has no such storage
        "HF_HUB_OFFLINE": False,
    }.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between two attempts
    disable_progress_bars()
    return stored


MODEL = bj.LanguageModel(small(schedule="MM"))
PARAMS = drawn(MODEL)
WEIGHTS = "model.safetensors"
SHARDED = {"max_shard_bytes": 2000}


def commit(remote: Hub, branch: str = "main", seed: int = 0, **options: Any) -> str:
    """Make a commit with the files of `MODEL`; return its hash."""
    with tempfile.TemporaryDirectory() as name:
        save_pretrained(name, MODEL, drawn(MODEL, seed), **options)
        return remote.commit(NAME, {p.name: p.read_bytes() for p in Path(name).iterdir()}, branch)


def files_of(remote: Hub, revision: str = "main") -> dict[str, bytes]:
    return remote.find(NAME, revision)[1]


def gets(remote: Hub, name: str) -> list[str]:
    """The downloads of a file."""
    return [line for line in remote.requests if line.startswith("GET") and name in line]


def throw(error: Exception) -> None:
    raise error


class TestThereAndBack:
    def test_the_same_bits(self, remote):
        commit(remote)
        model, params = load_pretrained(NAME)
        assert model == MODEL
        chex.assert_trees_all_equal(params, PARAMS, strict=True)

    def test_the_authors_form_is_fetched_without_its_second_weights(self, remote):
        source = CHECKPOINTS / "based-tiny"
        names = ("config.json", WEIGHTS, "pytorch_model.bin")
        files = {name: (source / name).read_bytes() for name in names}
        remote.commit(NAME, files | {"modeling.py": b"import os", "deep/model.safetensors": b"?"})
        chex.assert_trees_all_equal(load_pretrained(NAME)[1], load_pretrained(source)[1], strict=True)
        fetched = {line.split("/")[-1].strip() for line in remote.requests if line.startswith("GET /owner")}
        assert fetched == {"config.json", WEIGHTS}

    def test_a_branch(self, remote, tmp_path, monkeypatch, capsys):
        commit(remote)
        commit(remote, "next", seed=1)
        chex.assert_trees_all_equal(load_pretrained(NAME)[1], PARAMS, strict=True)
        done = run_here(convert.PROG, convert.main, [f"{NAME}@next", tmp_path / "next"], capsys)
        assert done.status == 0, done.err
        chex.assert_trees_all_equal(load_pretrained(tmp_path / "next")[1], drawn(MODEL, seed=1), strict=True)


class TestRevisions:
    def test_a_pinned_commit_in_the_cache_asks_nothing(self, remote):
        pinned = commit(remote, **SHARDED)
        load_pretrained(NAME, revision=pinned)
        remote.requests.clear()
        chex.assert_trees_all_equal(load_pretrained(NAME, revision=pinned)[1], PARAMS, strict=True)
        assert not remote.requests

    def test_all_files_are_of_one_commit(self, remote):
        """The branch moves between config.json and the weights."""
        commit(remote)

        def move(handler):
            if "resolve" in handler.path and "config.json" in handler.path:
                remote.fault = None
                remote.commit(NAME, {**files_of(remote), WEIGHTS: b"?"})

        remote.fault = move
        chex.assert_trees_all_equal(load_pretrained(NAME)[1], PARAMS, strict=True)

    def test_what_is_no_revision(self, remote):
        for source, revision, message in [
            (f"{NAME}@a", "b", "revision = 'b': expected None with"),
            (NAME, "../../x", r"revision = '\.\./\.\./x': expected a branch, tag or commit"),
            (NAME, "", "revision = ''"),
            (str(CHECKPOINTS / "based-tiny"), "main", "revision = 'main': expected None, or a hub id"),
        ]:
            with pytest.raises(ValueError, match=message):
                load_pretrained(source, revision=revision)
            assert not remote.requests


class TestInterruptions:
    def test_files_that_are_there_are_not_fetched_again(self, remote, tmp_path):
        commit(remote, **SHARDED)
        names = sorted(name for name in files_of(remote) if name.startswith("model-"))

        def fail(handler):
            if handler.command == "GET" and names[-1] in handler.path:
                raise Refused(500)

        remote.fault = fail
        with pytest.raises(FileNotFoundError, match="'owner/small' could not be fetched from the hub"):
            load_pretrained(NAME)
        kept = [path.name for path in (tmp_path / "cache").glob("*/snapshots/*/model-*.safetensors")]
        remote.fault = None
        remote.requests.clear()
        chex.assert_trees_all_equal(load_pretrained(NAME)[1], PARAMS, strict=True)
        assert kept
        assert not [line for name in kept for line in gets(remote, name)]


class TestRefusals:
    def test_a_damaged_cache(self, remote, tmp_path):
        pinned = commit(remote)
        load_pretrained(NAME)
        (weights,) = (tmp_path / "cache").glob(f"*/snapshots/*/{WEIGHTS}")
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
        for revision in (None, pinned):
            with pytest.raises(ValueError, match="damaged, its SHA-256 is") as found:
                load_pretrained(NAME, revision=revision)
        Path(str(found.value).partition("remove ")[2].partition(" and")[0]).unlink()
        chex.assert_trees_all_equal(load_pretrained(NAME)[1], PARAMS, strict=True)

    def test_no_repository_or_revision(self, remote):
        commit(remote)
        for name, revision, message in [
            ("no/body", None, "'no/body': no such directory, and no such model on"),
            (NAME, "v9", "revision = 'v9': expected a branch, tag or commit of"),
        ]:
            with pytest.raises(FileNotFoundError, match=message):
                load_pretrained(name, revision=revision)

    def test_access_that_is_refused(self, remote):
        for code, kind, message in [
            ("GatedRepo", FileNotFoundError, "gated: accept its terms"),
            ("", PermissionError, r"refuses access .*hf auth login"),
        ]:
            remote.fault = lambda handler, code=code: throw(Refused(403, code))
            with pytest.raises(kind, match=message):
                load_pretrained(NAME)

    @pytest.mark.parametrize(
        ("files", "message"),
        [
            ({}, "has no config.json, but nothing"),
            ({WEIGHTS: b"?"}, "has no config.json, but model.safetensors"),
            ({"config.json": b"{}", "evil.pkl": b"?"}, r"no model\.safetensors or .*, but config.json"),
            ({"config.json": b"{}", WEIGHTS: b"?"}, "expected those of a based or attn model"),
            ({"config.json": b'{"format": "based_jax", "version": 9}', WEIGHTS: b"?"}, "version = 9"),
            (
                {"config.json": b'{"model_type": "gemma", "hidden_size": 8}', WEIGHTS: b"?"},
                "model_type = 'gemma': expected a supported model",
            ),
            (
                {"config.json": b'{"n_embd": 8, "n_layer": 1, "no_such_entry": 1}', WEIGHTS: b"?"},
                "'no_such_entry': expected one of",
            ),
        ],
    )
    def test_what_is_no_model(self, remote, files, message):
        remote.commit(NAME, files)
        with pytest.raises((FileNotFoundError, ValueError), match=message):
            load_pretrained(NAME)
        assert not gets(remote, WEIGHTS)

    def test_a_missing_shard(self, remote):
        commit(remote, **SHARDED)
        files = files_of(remote)
        gone = sorted(name for name in files if name.startswith("model-"))[1]
        del files[gone]
        with pytest.raises(FileNotFoundError, match=f"has no {gone}, as {WEIGHTS}.index.json says"):
            load_pretrained(NAME)

    @pytest.mark.parametrize(
        ("name", "size"), [("config.json", hub.MAX_BYTES), (WEIGHTS, hub.MAX_WEIGHT_BYTES)]
    )
    def test_a_file_that_is_too_large_is_not_fetched(self, remote, name, size):
        commit(remote)
        remote.sizes[name] = size + 1
        with pytest.raises(ValueError, match=rf"{size + 1:,} bytes, expected at most {size:,}"):
            load_pretrained(NAME)
        assert not gets(remote, name)

    def test_no_network(self, remote, monkeypatch):
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
        with pytest.raises(FileNotFoundError, match=r"no such directory, the hub cannot be reached .*, and"):
            load_pretrained(NAME)

    def test_offline(self, remote, monkeypatch):
        commit(remote)
        load_pretrained(NAME)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        remote.requests.clear()
        chex.assert_trees_all_equal(load_pretrained(NAME)[1], PARAMS, strict=True)
        with pytest.raises(FileNotFoundError, match=r"cache has no config\.json of 'owner/other' at main"):
            load_pretrained("owner/other")
        assert not remote.requests

    def test_a_cache_without_all_weights(self, remote, monkeypatch):
        commit(remote)
        huggingface_hub.hf_hub_download(NAME, "config.json")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(FileNotFoundError, match="the cache has not all weights of 'owner/small' at main"):
            load_pretrained(NAME)

    def test_without_the_package(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        with pytest.raises(ImportError, match=r"install huggingface_hub \(pip install"):
            load_pretrained(NAME)
