"""Write an exported model as a directory that describes itself and runs without this library.

manifest.json          inputs and outputs of the programs, the versions that wrote them, checksums
init.jaxexport, prefill.jaxexport, decode.jaxexport, extend.jaxexport
weights.safetensors    by parameter name
tokenizer.json         absent without a tokenizer
run.py                 a copy of `runner.py`, which uses nothing of this library
"""

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from based_jax.convert.hub import CONFIG
from based_jax.convert.state_dict import write_safetensors
from based_jax.data.tokenizers import FileTokenizer, Tokenizer, stop_tokens, text_start
from based_jax.export import runner
from based_jax.export.programs import KEY_KIND, SIGNATURES, Plan, Programs, export_programs
from based_jax.files import remove_unfinished, whole_file, write_json
from based_jax.imports import import_optional
from based_jax.models.language_model import LanguageModel
from based_jax.typing import Params
from based_jax.validate import expect, expect_directory

WEIGHTS = "weights.safetensors"
RUNNER = "run.py"
TOKENIZER = "tokenizer.json"


def export_model(
    directory: str | os.PathLike[str],
    model: LanguageModel,
    params: Params,
    plan: Plan | None = None,
    tokenizer: Tokenizer | None = None,
) -> Path:
    """Export a model's programs, and write them with its weights and a runner.

    Args:
        directory: created if needed; files of an earlier export are replaced.
        model, params: the model and its variables.
        plan: what is compiled into the programs; None for the defaults.
        tokenizer: the one it was trained with, for ``run.py --prompt``; None exports none.

    Returns:
        The manifest's path. Its sha256 is stored in the user's cache directory, so that `Exported.load`
        trusts the directory on this machine.

    Raises:
        ValueError: a tokenizer with more tokens than the model; see also `export_programs`.
        ImportError: flatbuffers is missing.
    """
    plan = plan or Plan()
    if tokenizer is not None:
        most = model.config.vocab_size
        expect(tokenizer.vocab_size <= most, "tokenizer.vocab_size", tokenizer.vocab_size, f"at most {most}")
    expect_free(directory)
    import_optional("flatbuffers", "directory", str(directory), "export")  # which jax.export needs
    programs = export_programs(model, params, plan)
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    remove_unfinished(target)
    # Write the manifest last: an interrupted export leaves a directory that is refused.
    (target / runner.MANIFEST).unlink(missing_ok=True)
    entries, text = {}, None
    for name, exported in programs.exported.items():
        path = target / f"{name}.jaxexport"
        with whole_file(path) as file:
            file.write(exported.serialize())
        arguments, results = SIGNATURES[name]
        entries[name] = {**_entry(path), "arguments": list(arguments), "results": list(results)}
    (target / TOKENIZER).unlink(missing_ok=True)
    write_safetensors(target / WEIGHTS, programs.params)
    if tokenizer is not None:
        save = tokenizer.save_prepared if isinstance(tokenizer, FileTokenizer) else tokenizer.save
        save(target)
        stops = list(stop_tokens(tokenizer))
        text = {**_entry(target / TOKENIZER), "start": text_start(tokenizer), "stop_tokens": stops}
    shutil.copyfile(runner.__file__, target / RUNNER)
    files = {"programs": entries, "weights": _entry(target / WEIGHTS), "tokenizer": text}
    manifest = _manifest(model, plan, programs) | files
    manifest["sha256"] = runner.digest(manifest)
    write_json(target / runner.MANIFEST, manifest)
    runner.record(manifest["sha256"])
    return target / runner.MANIFEST


def expect_free(directory: str | os.PathLike[str]) -> None:
    """Check that a directory to write to has no model or run, whose files would be replaced."""
    target = Path(directory)
    expect_directory("directory", target)
    is_export = any(target.glob("*.jaxexport"))  # an interrupted one has programs, but no manifest
    others = (CONFIG,) if is_export else (CONFIG, WEIGHTS, TOKENIZER, RUNNER, runner.MANIFEST)
    is_free = not any((target / name).exists() for name in others)
    expect(is_free, "directory", str(target), "a new one, or that of an export")


def _manifest(model: LanguageModel, plan: Plan, programs: Programs) -> dict[str, Any]:
    """Return all entries except those of the files."""
    of_plan = ("batch_size", "prefill_chunk", "decode_chunk")
    return {
        "format": runner.FORMAT,
        "version": runner.VERSION,
        "jax": jax.__version__,
        "platforms": list(plan.platforms),
        "calling_convention_version": programs.exported["init"].calling_convention_version,
        **{name: getattr(plan, name) for name in of_plan},
        **{name: getattr(model.config, name) for name in ("dtype", "vocab_size")},
        "max_length": programs.limit,
        "key_kind": KEY_KIND,
        "values": {name: _describe(value) for name, value in programs.values.items()},
        "model": model.config.to_dict(),
    }


def _describe(value: Any) -> dict[str, Any]:
    """Return shape ("b" for the batch) and dtype, or those of every entry."""
    if isinstance(value, Mapping):
        return {name: _describe(part) for name, part in value.items()}
    shape = [size if isinstance(size, int) else str(size) for size in value.shape]
    return {"shape": shape, "dtype": str(value.dtype)}


def _entry(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"file": path.name, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
