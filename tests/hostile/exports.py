"""Exported directories: changed files and manifests, with their checksums made again too."""

import atexit
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from based_jax.export import Exported, Plan, runner
from tests.export.conftest import make_case
from tests.hostile.attack import Attack
from tests.hostile.damage import Rng, damaged_bytes, mutated_json, other_kind, write_json

PLAN = Plan(("cpu",), batch_size=2, prefill_chunk=4, decode_chunk=3)


def attacks(rng: Rng, count: int) -> Iterator[Attack]:
    """What loads without trust is what was exported here; what loads with it is at least described."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    original = make_case("C", PLAN, folder / "original").exported
    names = sorted(path.name for path in (folder / "original").iterdir())
    whole = (folder / "original" / "manifest.json").read_text(encoding="utf-8")
    target = folder / "target"

    def run(trust: bool, digest: str | None) -> None:
        found = Exported.load(target, sha256=digest, trust=trust)
        if not trust:
            assert found.manifest == original.manifest, "another export was taken"
            assert set(found.params) == set(original.params)

    shutil.copytree(folder / "original", target)
    run(trust=False, digest=None)
    for number in range(count):
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder / "original", target)
        name = str(rng.choice(names))
        kind = str(rng.choice(["bytes", "kind", "manifest", "signed", "entry", "swapped"]))
        trust = bool(kind in ("signed", "entry") and rng.random() < 0.5)
        description = name
        if kind == "bytes":
            description, changed = damaged_bytes(rng, (target / name).read_bytes())
            (target / name).write_bytes(changed)
            description = f"{name}, {description}"
        elif kind == "kind":
            description = f"{name}, {other_kind(rng, target / name)}"
        elif kind == "swapped":
            description = str(rng.choice(names))
            shutil.copy(folder / "original" / description, target / name)
            description = f"{description} as {name}"
        else:
            description, manifest = mutated_json(rng, json.loads(whole))
            if kind == "entry":
                manifest, description = _other_content(rng, json.loads(whole), target)
            if kind != "manifest" and isinstance(manifest, dict):
                manifest["sha256"] = runner.digest(manifest)
            write_json(target / "manifest.json", manifest)
        digest = json.loads(whole)["sha256"] if rng.random() < 0.2 else None
        what = f"{kind} {number}, trust {trust}, sha256 {digest is not None}: {description}"
        yield Attack(what, lambda trust=trust, digest=digest: run(trust, digest))


def _other_content(rng: Rng, manifest: dict[str, Any], target: Path) -> tuple[dict[str, Any], str]:
    """A file changed and its checksum made again."""
    entries = [*manifest["programs"].values(), manifest["weights"]]
    entry = entries[int(rng.integers(len(entries)))]
    path = target / entry["file"]
    description, changed = damaged_bytes(rng, path.read_bytes())
    path.write_bytes(changed)
    entry["sha256"] = hashlib.sha256(changed).hexdigest()
    return manifest, f"{path.name}, {description}"
