"""Whatever is wrong with an exported directory, or with the jax beside it, is said in one clear error."""

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import jax
import pytest
from jax import export

from based_jax.export import Exported, Programs, export_model, runner
from based_jax.export import directory as directory_module
from tests.export.conftest import Case
from tests.generate.tiny import LENGTH


@pytest.fixture
def copy(mixed: Case, tmp_path) -> Path:
    return shutil.copytree(mixed.directory, tmp_path / "copy")


def edit(directory: Path, *, sign: bool, **entries) -> None:
    """Change entries of the manifest, with its checksum or without."""
    path = directory / "manifest.json"
    manifest = json.loads(path.read_text()) | entries
    path.write_text(json.dumps(manifest | ({"sha256": runner.digest(manifest)} if sign else {})))


def test_manifest_says_what_the_programs_take(mixed):
    manifest = mixed.exported.manifest
    config = mixed.tiny.model.config
    assert manifest["platforms"] == ["cpu", "cuda"]
    assert manifest["jax"] == jax.__version__
    assert manifest["disabled_checks"] == {}
    assert manifest["vocab_size"] == config.vocab_size
    assert manifest["model"] == json.loads(config.to_json())
    assert (manifest["batch_size"], manifest["prefill_chunk"], manifest["decode_chunk"]) == (None, 8, 5)
    assert manifest["max_length"] == LENGTH
    values = manifest["values"]
    assert values["logits"] == {"shape": ["b", config.padded_vocab_size], "dtype": "float32"}
    assert values["tokens"] == {"shape": ["b", 8], "dtype": "int32"}
    assert values["params"]["embedding"] == {"shape": [config.padded_vocab_size, 16], "dtype": "float32"}
    assert values["state"]["3/k"]["shape"] == ["b", LENGTH, 2, 8]
    assert manifest["programs"]["decode"]["arguments"] == ["params", "state", "token", "active"]
    assert {entry["file"] for entry in manifest["programs"].values()} | {
        "weights.safetensors", "manifest.json", "run.py",
    } == {path.name for path in mixed.directory.iterdir()}  # fmt: skip


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


def test_manifest_that_is_not_one(copy):
    path = copy / "manifest.json"
    text = path.read_text()
    for wrong, message in [
        (text[:-9], "expected JSON"),
        ("[]", "expected the entry"),
        ("{}", "expected the entry"),
    ]:
        path.write_text(wrong)
        with pytest.raises(ValueError, match=rf"manifest.json: {message}"):
            Exported.load(copy)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"manifest.json: expected an exported directory"):
        Exported.load(copy)


def test_edited_manifest(copy):
    edit(copy, sign=False, vocab_size=51)
    with pytest.raises(ValueError, match=r"manifest.json: was changed after the export"):
        Exported.load(copy)


def test_unknown_format_version(copy):
    edit(copy, sign=True, version=2)
    with pytest.raises(ValueError, match=r"manifest.json: version = 2: expected 1$"):
        Exported.load(copy)


def test_another_calling_convention(copy):
    edit(copy, sign=True, calling_convention_version=99, jax="9.9.9")
    with pytest.raises(ValueError, match=r"by jax 9.9.9 with calling convention 99: expected \d+ to \d+"):
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
        Exported.load(copy)


def test_another_platform(copy):
    edit(copy, sign=True, platforms=["cuda"])
    with pytest.raises(ValueError, match="exported for cuda: expected cpu, where this process runs"):
        Exported.load(copy)


def test_kernels_and_another_jax(copy):
    edit(copy, sign=True, jax="0.10.0", disabled_checks={"custom_call:x": "why"})
    with pytest.warns(UserWarning, match=r"kernels that only jax 0.10.0 is known to run"):
        Exported.load(copy)


def test_an_interrupted_export_is_refused(small, tmp_path, monkeypatch):
    """Writing over an old export: no mixture of the two is ever taken for a whole one."""
    directory = shutil.copytree(small.directory, tmp_path / "copy")
    nothing = Programs(exported={}, signatures={}, values={}, params={}, limit=None)
    monkeypatch.setattr(directory_module, "export_programs", lambda *_: nothing)
    monkeypatch.setattr(directory_module, "RUNNER", "no/such/place")
    with pytest.raises(OSError, match="no/such/place"):
        export_model(directory, small.tiny.model, small.tiny.params, small.plan)
    with pytest.raises(FileNotFoundError, match=r"manifest.json"):
        Exported.load(directory)
