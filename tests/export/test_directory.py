"""Whatever is wrong with an exported directory, or with the jax beside it, is said in one clear error."""

import dataclasses
import hashlib
import json
import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from safetensors.numpy import save_file

from based_jax.export import Exported, Programs, export_model, runner
from based_jax.export import directory as directory_module
from tests.export.conftest import Case
from tests.generate.tiny import LENGTH


@pytest.fixture
def copy(plain: Case, tmp_path) -> Path:
    return shutil.copytree(plain.directory, tmp_path / "copy")


def edit(directory: Path, *, sign: bool, **entries) -> None:
    """Change entries of the manifest, with its checksum or without."""
    path = directory / "manifest.json"
    manifest = json.loads(path.read_text()) | entries
    path.write_text(json.dumps(manifest | ({"sha256": runner.digest(manifest)} if sign else {})))


def test_manifest_says_what_the_programs_take(plain):
    manifest = plain.exported.manifest
    config = plain.tiny.model.config
    assert manifest["platforms"] == ["cpu", "cuda"]
    assert manifest["jax"] == jax.__version__
    assert manifest["vocab_size"] == config.vocab_size
    assert manifest["model"] == json.loads(config.to_json())
    assert (manifest["batch_size"], manifest["prefill_chunk"], manifest["decode_chunk"]) == (None, 8, 5)
    assert manifest["max_length"] == LENGTH
    values = manifest["values"]
    assert values["logits"] == {"shape": ["b", config.padded_vocab_size], "dtype": "float32"}
    assert values["tokens"] == {"shape": ["b", 8], "dtype": "int32"}
    assert values["params"]["embedding"] == {"shape": [config.padded_vocab_size, 16], "dtype": "float32"}
    assert values["state"]["0/k"]["shape"] == ["b", LENGTH, 2, 8]
    assert manifest["programs"]["decode"]["arguments"] == ["params", "state", "token", "active"]
    assert {entry["file"] for entry in manifest["programs"].values()} | {
        "weights.safetensors",
        "manifest.json",
        "run.py",
    } == {path.name for path in plain.directory.iterdir()}


@pytest.mark.parametrize("name", ["decode.jaxexport", "weights.safetensors"])
def test_files_that_are_cut_changed_or_missing(copy, name):
    path = copy / name
    content = path.read_bytes()
    for wrong in (content[:-1], content[:-1] + bytes([content[-1] ^ 1]), b""):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match=f"{name}: cut, changed or of another export"):
            Exported.load(copy)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{name}: expected this file"):
        Exported.load(copy)


def test_wrong_manifests(copy):
    path = copy / "manifest.json"
    text = path.read_text()
    others = {"calling_convention_version": 99, "jax": "9.9.9"}
    for write, message in [
        (lambda: path.write_text(text[:-9]), r"manifest.json: expected JSON"),
        (lambda: path.write_text('{"format":' + "[" * 10**5), r"manifest.json: expected JSON \("),
        (lambda: path.write_text("[]"), r"manifest.json: expected the entry"),
        (lambda: path.write_text("{}"), r"manifest.json: expected the entry"),
        (lambda: edit(copy, sign=False, vocab_size=51), r"manifest.json: was changed after the export"),
        (lambda: edit(copy, sign=True, version=2), r"manifest.json: version = 2: expected 3$"),
        (
            lambda: edit(copy, sign=True, **others),
            r"by jax 9.9.9 with calling convention 99: expected \d+ to",
        ),
        (lambda: edit(copy, sign=True, platforms=["cuda"]), "exported for cuda: expected cpu, where this"),
        (lambda: edit(copy, sign=True, programs={}), "manifest.json: lacks an entry"),
        (lambda: edit(copy, sign=True, programs=[]), "manifest.json: lacks an entry or has one of another"),
        (lambda: edit(copy, sign=True, prefill_chunk=0), "prefill_chunk = 0: expected at least 1"),
        (lambda: edit(copy, sign=True, vocab_size=0), "vocab_size = 0: expected at least 1"),
    ]:
        path.write_text(text)
        write()
        with pytest.raises(ValueError, match=message) as refused:
            Exported.load(copy, trust=True)
        assert "\n" not in str(refused.value)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"manifest.json: expected an exported directory"):
        Exported.load(copy)


@pytest.mark.parametrize("part", ["envelope", "operations"])
def test_program_that_this_jax_cannot_read(small, tmp_path, part):
    copy = shutil.copytree(small.directory, tmp_path / "copy")
    path = copy / "decode.jaxexport"
    content = b"from the future"
    if part == "operations":
        program = export.deserialize(bytearray(path.read_bytes()))
        content = dataclasses.replace(program, mlir_module_serialized=content).serialize()
    path.write_bytes(content)
    entry = {"file": path.name, "sha256": hashlib.sha256(content).hexdigest()}
    programs = json.loads((copy / "manifest.json").read_text())["programs"]
    edit(copy, sign=True, jax="9.9.9", programs={**programs, "decode": entry})
    with pytest.raises(ValueError, match=r"decode.jaxexport: jax .* cannot read what jax 9.9.9 wrote"):
        Exported.load(copy, trust=True)


def test_weights_of_another_model(copy):
    manifest = json.loads((copy / "manifest.json").read_text())
    save_file({"embedding": np.zeros((2, 2), np.float32)}, copy / "weights.safetensors")
    for content in ((copy / "weights.safetensors").read_bytes(), b"no tensors"):
        (copy / "weights.safetensors").write_bytes(content)
        entry = manifest["weights"] | {"sha256": hashlib.sha256(content).hexdigest()}
        edit(copy, sign=True, weights=entry)
        with pytest.raises(ValueError, match=r"weights.safetensors: (arrays = .*describes|expected a safet)"):
            Exported.load(copy, trust=True)


def test_an_export_from_elsewhere_needs_trust(copy, records, monkeypatch):
    """Before its entries are read; not so one made here, or one whose sha256 was given by another way."""
    digest = json.loads((copy / "manifest.json").read_text())["sha256"]
    assert (records / digest).is_file()
    Exported.load(copy)
    monkeypatch.setenv("XDG_CACHE_HOME", str(copy))  # another machine's
    with pytest.raises(ValueError, match=rf"^{copy}: was not exported here, .* --trust\)$") as refused:
        Exported.load(copy)
    assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match=rf"^sha256 = '0f': expected {digest}, of {copy}"):
        Exported.load(copy, sha256="0f", trust=True)
    Exported.load(copy, sha256=digest)
    Exported.load(copy, trust=True)
    monkeypatch.setattr(runner, "__file__", str(copy / "run.py"))  # the runner that came with it
    Exported.load(copy)


def test_nowhere_to_remember_an_export(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    runner.record("0f")
    assert not runner._is_own(tmp_path, "0f")


def test_files_that_are_no_exports_are_kept(small, tmp_path):
    (tmp_path / "run.py").write_text("mine")
    with pytest.raises(ValueError, match=r"^directory = .*: expected a new one, or that of an export$"):
        export_model(tmp_path, small.tiny.model, small.tiny.params, small.plan)
    assert [path.name for path in tmp_path.iterdir()] == ["run.py"]


def test_an_interrupted_export_is_refused(small, tmp_path, monkeypatch):
    """Writing over an old export: no mixture of the two is ever taken for a whole one."""
    directory = shutil.copytree(small.directory, tmp_path / "copy")
    nothing = Programs({}, {}, {"w": jnp.zeros(1)}, None)
    monkeypatch.setattr(directory_module, "export_programs", lambda *_: nothing)
    monkeypatch.setattr(directory_module, "RUNNER", "no/such/file")
    with pytest.raises(OSError, match="no/such/file"):
        export_model(directory, small.tiny.model, small.tiny.params, small.plan)
    with pytest.raises(FileNotFoundError, match=r"manifest.json"):
        Exported.load(directory)


def test_without_flatbuffers_the_error_names_the_extra(small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    with pytest.raises(ImportError, match=r"'flatbuffers'.*pip install 'based-jax\[export\]'"):
        export_model(tmp_path, small.tiny.model, small.tiny.params, small.plan)
