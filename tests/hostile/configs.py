"""config.json of ours and of the hub's form: wrong types, huge numbers, deep and large JSON."""

import functools
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chex
import jax
import numpy as np

import based_jax as bj
from based_jax.convert import load_pretrained, save_pretrained
from tests.hostile.attack import Attack

SECONDS = 20.0
"""where sizes fit each other, the shapes of one layer of each kind are traced"""

_HUB = Path(__file__).parents[1] / "fixtures" / "checkpoints"
_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 1.5, -0.5, 1e-300, 1e308, float("nan"), float("inf"), 10**6, 10**12,
    10**400, 1 << 63, "", "no", "C" * 3000, "A" * 200_000, "\x1b[2J", "\ud800", [], {}, [[]],
    {"mixer": "gated_conv"}, {"mixer": "gla", "options": 5}, list(range(2000)), "float64", "layer", "plain",
]  # fmt: skip
_MIXERS = list(bj.mixers.names())


@functools.cache
def _native() -> Path:
    """A directory of ours with the weights of a small model."""
    config = bj.presets.get("based-tiny").replace(schedule="CLS", d_model=32, mlp_hidden=32)
    model = bj.LanguageModel(config)
    directory = Path(tempfile.mkdtemp())
    params = model.init(jax.random.key(0), np.zeros((1, 4), np.int32))
    save_pretrained(directory, model, params)
    return directory


def attacks(rng: np.random.Generator, count: int) -> Iterator[Attack]:
    """Yield `count` attacks: about half of them on our form, the others on the hub's."""
    sources = [_native(), *(_HUB / name for name in ("based-tiny", "attn-tiny", "mamba-tiny"))]
    for _ in range(count):
        seeds = np.random.default_rng(rng.integers(1 << 32))
        chosen = int(seeds.choice(len(sources), p=[0.55, 0.15, 0.15, 0.15]))
        text = (sources[chosen] / "config.json").read_text(encoding="utf-8")
        what, text, size = _text(text, seeds) if seeds.random() < 0.15 else _changed(text, seeds)
        yield Attack(f"{sources[chosen].name}: {what}", functools.partial(_load, sources[chosen], text, size))


def _load(source: Path, text: str, size: int | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for file in source.iterdir():
            if file.name != "config.json" and file.is_file():
                (directory / file.name).symlink_to(file)
        config = directory / "config.json"
        config.write_bytes(text.encode("utf-8", "surrogatepass"))
        if size is not None:
            os.truncate(config, size)
        before = sorted(path.name for path in directory.iterdir())
        try:
            model, params = load_pretrained(directory)
        except ValueError as error:
            message = str(error)
            assert message.isprintable(), ascii(message[:300])
            assert len(message) < 4000, len(message)
            raise
        finally:
            assert sorted(path.name for path in directory.iterdir()) == before
        chex.assert_tree_all_finite(params)
        fields = json.loads(model.config.to_json())
        assert bj.ModelConfig.from_dict(fields) == model.config


def _changed(text: str, rng: np.random.Generator) -> tuple[str, str, None]:
    """One to three entries, at any depth, that are another value, gone or new."""
    config = json.loads(text)
    changes = []
    for _ in range(rng.integers(1, 4)):
        node, path = config, ""
        while True:
            keys = list(node)
            key = keys[int(rng.integers(len(keys)))] if keys else "new"
            path += f".{key}"
            if not (isinstance(node.get(key), dict) and node[key] and rng.random() < 0.85):
                break
            node = node[key]
        chance = rng.random()
        if chance < 0.1:
            node.pop(key, None)
        elif chance < 0.2:
            node[f"x{key}"] = _value(rng)
        elif key == "options":
            mixer = _MIXERS[int(rng.integers(len(_MIXERS)))]
            known = bj.mixers.info(mixer).options
            node["mixer"] = mixer
            node[key] = {known[int(i)]: _value(rng) for i in rng.integers(len(known), size=2)}
        else:
            node[key] = _value(rng)
        changes.append(f"{path} {node.get(key)!r:.60}")
    return "; ".join(changes), json.dumps(config), None


def _value(rng: np.random.Generator) -> Any:
    return _VALUES[int(rng.integers(len(_VALUES)))]


def _text(text: str, rng: np.random.Generator) -> tuple[str, str, int | None]:
    """A text that is too deep, too large, cut, or says an entry twice; and the size to extend it to."""
    body = text.rstrip()[:-1]
    match int(rng.integers(6)):
        case 0:
            depth = int(rng.choice([100, 900, 100_000]))
            return f"depth {depth}", body + ',"d":' + "[" * depth + "]" * depth + "}", None
        case 1:
            size = int(rng.choice([1 << 23, 3 << 30, 1 << 40]))
            return f"{size} bytes", text, size
        case 2:
            return "dense", "[" + "[]," * ((7 << 20) // 3) + "[]]", None
        case 3:
            at = int(rng.integers(len(text)))
            return f"cut at {at}", text[:at], None
        case 4:
            return ("an entry twice", body + ',"n_layer":2,"n_layer":2}', None)
        case _:
            letters = list(text)
            for _ in range(4):
                letters[int(rng.integers(len(letters)))] = chr(
                    int(rng.choice([0, 27, 34, 48, 57, 91, 123, 0x2028]))
                )
            return "letters changed", "".join(letters), None
