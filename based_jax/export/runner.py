"""Run an exported language model: ``python run.py --prompt TEXT`` or ``python run.py --tokens 1,2,3``.

Needs jax, numpy, safetensors and flatbuffers, but not the library that wrote the directory; texts for a
model with a tokenizers file also need tokenizers. In Python:

    model = Exported.load(directory)
    model.generate_text(["def "], max_new_tokens=100)             # texts
    model.generate([[1, 2, 3], [4, 5]], max_new_tokens=16)        # lists of tokens
    state = model.init(2)                                         # or one call at a time
    logits, state = model.prefill(state, tokens, mask)
    logits, state = model.decode(state, token)

The programs run with the rights of the user who loads them, without a sandbox: load only what you trust.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import io
import itertools
import json
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from safetensors import SafetensorError
from safetensors.flax import load_file

FORMAT = "based_jax programs"
VERSION = 3
MANIFEST = "manifest.json"
PROGRAMS = ("init", "prefill", "decode", "extend")

_INT32_MAX = 2**31 - 1
_MOST_BYTES = 1 << 26  # of a manifest: a thousand times that of a large model

Array = jax.Array | np.ndarray
State = dict[str, jax.Array]
"""Arrays by name, with the batch as first axis. Immutable: continue from one as often as you like."""


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Settings of the sampling of tokens; ValueError: a setting out of its range."""

    temperature: float = 0.0
    """0 takes the most likely token; otherwise the logits are divided by it and sampled"""
    top_k: int = 0
    """sample among this many most likely tokens; 0 is all"""
    top_p: float = 1.0
    """sample among the fewest most likely tokens whose probabilities sum to at least this"""
    min_p: float = 0.0
    """sample among tokens with at least this share of the most likely one's probability"""
    repetition_penalty: float = 1.0
    """above 1: tokens that are in the prompt or were made become less likely"""
    presence_penalty: float = 0.0
    """subtracted from the logits of tokens that were made"""
    frequency_penalty: float = 0.0
    """subtracted from a token's logit once for every time it was made"""
    seed: int = 0
    """row r has the key fold_in(key(seed), r)"""

    def __post_init__(self) -> None:
        most, above_0 = float(np.finfo(np.float32).max), math.ulp(0.0)
        for name, kind, low, high, expected in (
            ("top_k", _is_whole, 0, _INT32_MAX, "an integer, at least 0"),
            ("seed", _is_whole, 0, 2**32 - 1, "an integer in [0, 2^32)"),
            ("temperature", _is_number, 0, most, "a finite number, at least 0"),
            ("top_p", _is_number, above_0, 1, "a number in (0, 1]"),
            ("min_p", _is_number, 0, 1, "a number in [0, 1]"),
            # Beyond these bounds penalties could make float32 logits infinite.
            ("repetition_penalty", _is_number, 1e-20, 1e20, "a number from 1e-20 to 1e20"),
            ("presence_penalty", _is_number, -1e20, 1e20, "a number from -1e20 to 1e20"),
            ("frequency_penalty", _is_number, -1e20, 1e20, "a number from -1e20 to 1e20"),
        ):
            value = getattr(self, name)
            _expect(kind(value) and low <= value <= high, name, value, expected)

    def arrays(self, rows: int, key_kind: str) -> dict[str, np.ndarray]:
        """Return the settings as arrays for the program, the same for all rows except for the keys."""
        key = jax.random.key(self.seed, impl=key_kind)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(rows))
        others = {name: value for name, value in vars(self).items() if name != "seed"}
        given = {name.removesuffix("_penalty"): value for name, value in others.items()}
        arrays = {name: np.full(rows, value, np.float32) for name, value in given.items()}
        whole = {"keys": np.asarray(jax.random.key_data(keys)), "top_k": np.full(rows, self.top_k, np.int32)}
        return arrays | whole


class Exported:
    """A language model read from an exported directory; see `load`.

    Attributes:
        manifest: the directory's description of itself.
        params: the weights by name.
    """

    def __init__(
        self,
        manifest: Mapping[str, Any],
        programs: Mapping[str, export.Exported],
        params: dict[str, Any],
        tokenizer: Path | None = None,
    ) -> None:
        self.manifest, self.params, self._tokenizer = manifest, params, tokenizer
        self._init, self._prefill, self._decode = (jax.jit(programs[name].call) for name in PROGRAMS[:3])
        # The loop of `generate` alone owns its state, so each step may overwrite the previous one.
        self._extend = jax.jit(programs["extend"].call, donate_argnums=(1, 2))

    @classmethod
    def load(
        cls, directory: str | os.PathLike[str], *, sha256: str | None = None, trust: bool = False
    ) -> "Exported":
        """Read and check a directory. Call this before anything else uses JAX, on a CPU (see below).

        Args:
            directory: this file's own, one that this user exported on this machine, or any other together
                with one of the following arguments.
            sha256: the manifest's, as the export printed it: proves that the directory is that export.
            trust: load the directory unchecked. Its programs run with the rights of this process.

        Raises:
            FileNotFoundError: a file is missing.
            ValueError: a file was changed, cut or belongs to another export; a format, a calling convention
                or programs that this version of jax does not support; no program for this platform; an export
                from elsewhere without `sha256` or `trust`.
            ImportError: flatbuffers is missing.
        """
        avoid_broken_fusions()
        folder = Path(directory)
        manifest = read_manifest(folder)
        if sha256 is not None:
            _expect(manifest["sha256"] == sha256, "sha256", sha256, f"{manifest['sha256']}, of {folder}")
        elif not (trust or _is_own(folder, manifest["sha256"])):
            raise ValueError(
                f"{folder}: was not exported here, and its programs run with your rights: expected sha256 "
                "(run.py --sha256), which the export printed, or trust=True (run.py --trust)"
            )
        try:
            _check_environment(folder, manifest)
            programs = {
                name: _deserialize(_checked(folder, entry), manifest)
                for name, entry in manifest["programs"].items()
            }
            text = manifest["tokenizer"]
            weights = _read_weights(folder, manifest)
            for name in ("prefill_chunk", "decode_chunk", "vocab_size"):
                _expect(manifest[name] >= 1, name, manifest[name], "at least 1")
            for name in ("batch_size", "max_length", "key_kind"):
                manifest[name]  # KeyError
            return cls(manifest, programs, weights, None if text is None else _checked(folder, text))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{folder / MANIFEST}: lacks an entry or has one of another type ({error!r:.200})"
            ) from error

    def init(self, batch_size: int) -> State:
        """Return the state before the first token of `batch_size` rows."""
        self._check_rows(batch_size)
        return self._init(np.zeros(batch_size, np.int32))

    def prefill(self, state: State, tokens: Array, mask: Array) -> tuple[jax.Array, State]:
        """Read a chunk of each row's prompt.

        Args:
            state: of B rows.
            tokens: int32 (B, C), C = `prefill_chunk` of the manifest.
            mask: bool (B, C), True for real tokens; padding on the right.

        Returns:
            logits: float32 (B, vocab) after the last real token; meaningless for a row without real tokens,
                whose state does not change.
            state: after these tokens.
        """
        return self._prefill(self.params, state, tokens, mask)

    def decode(self, state: State, token: Array, active: Array | None = None) -> tuple[jax.Array, State]:
        """Read one token per row.

        Args:
            token: int32 (B,).
            active: bool (B,), False for rows that keep their state; None is all.

        Returns:
            logits: float32 (B, vocab), meaningless for rows that are not active.
            state: after the token.
        """
        active = np.ones(len(token), bool) if active is None else active
        return self._decode(self.params, state, token, active)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int = 64,
        *,
        stop_tokens: Sequence[int] = (),
        **sampling: Any,
    ) -> list[list[int]]:
        """Continue prompts.

        Args:
            prompts: rows of tokens, of any lengths, none empty.
            max_new_tokens: number of tokens to make per row.
            stop_tokens: a row ends before one of these.
            sampling: settings of `Sampling`, such as temperature=0.8, top_p=0.95, seed=1.

        Returns:
            The new tokens of each row.

        Raises:
            TypeError: an unknown setting.
            ValueError: an empty prompt, a token outside of the vocabulary, more rows or tokens than the
                programs were exported for, or a sampling setting out of its range.
        """
        *_, (texts, _) = self._rounds(prompts, max_new_tokens, stop_tokens, Sampling(**sampling))
        return texts

    def generate_text(
        self, prompts: Sequence[str], max_new_tokens: int = 200, *, stop: Sequence[str] = (), **sampling: Any
    ) -> list[str]:
        """Continue texts; each begins a document, and its continuation ends at a stop token.

        Args:
            prompts: texts; "" begins a new document.
            max_new_tokens: most tokens to make per text.
            stop: texts that end a continuation; they are not returned.
            sampling: see `generate`.

        Returns:
            The continuations, without the prompts.

        Raises:
            ValueError: an export without a tokenizer; a prompt that it cannot encode; see also `generate`.
            ImportError: the tokenizer needs the package tokenizers.
        """
        _expect(not isinstance(prompts, str), "prompts", prompts, "a list of texts")
        stop = [stop] if isinstance(stop, str) else stop
        _expect(all(stop), "stop", stop, "texts that are not empty")
        if self._tokenizer is None:
            raise ValueError("no tokenizer was exported: give tokens, or export again with --tokenizer")
        encode, decode = read_tokenizer(self._tokenizer)
        start = self.manifest["tokenizer"]["start"]
        stops = self.manifest["tokenizer"]["stop_tokens"]
        rows = [[start, *encode(prompt)] for prompt in prompts]
        begins = [len(decode(row)) for row in rows]  # the first word of a text is decoded without its space
        made = [""] * len(rows)
        for texts, active in self._rounds(rows, max_new_tokens, stops, Sampling(**sampling)):
            for row in np.flatnonzero(active[: len(rows)]):
                made[row] = decode([*rows[row], *texts[row]])[begins[row] :]
                certain = made[row].rstrip("\ufffd")  # the next tokens may complete a character
                active[row] = not any(each in certain for each in stop)
        return [_before(text, stop) for text in made]

    def _rounds(
        self, prompts: Sequence[Sequence[int]], new: int, stops: Sequence[int], sampling: "Sampling"
    ) -> Iterator[tuple[list[list[int]], np.ndarray]]:
        """Yield the new tokens of all rows and which rows are active, after every `decode_chunk` tokens.

        A row that has just ended still counts as active; the caller may set others to False to end them.
        """
        self._check(prompts, new, stops)
        rows, size = self.manifest["batch_size"] or len(prompts), self.manifest["vocab_size"]
        settings = sampling.arrays(rows, self.manifest["key_kind"])
        logits, state = self._read_prompts(prompts, rows)
        counts = np.zeros((2, rows, size), np.int32)  # of the prompts' tokens, and of the new ones
        for row, prompt in enumerate(prompts):
            counts[0, row] = np.bincount(prompt, minlength=size)
        texts: list[list[int]] = [[] for _ in prompts]
        active = np.arange(rows) < len(prompts)
        for made in range(0, new, self.manifest["decode_chunk"]):
            count = min(new - made, self.manifest["decode_chunk"])
            values = {
                **settings,
                "step": np.full(rows, made, np.int32),
                "prompt_counts": counts[0],
                "made_counts": counts[1].copy(),  # copied, as it changes while the device may still read it
            }
            tokens, logits, state = self._extend(
                self.params, state, logits, values, active.copy(), np.int32(count)
            )
            ended = []
            for row in np.flatnonzero(active):
                fresh = np.asarray(tokens)[row, :count].tolist()
                counts[1, row] += np.bincount(fresh, minlength=size).astype(np.int32)
                end = next((position for position, token in enumerate(fresh) if token in stops), None)
                texts[row] += fresh[:end]
                if end is not None:
                    ended.append(row)
            yield texts, active
            active[ended] = False
            if not active.any():
                return

    def _read_prompts(self, prompts: Sequence[Sequence[int]], rows: int) -> tuple[jax.Array, State]:
        chunk = self.manifest["prefill_chunk"]
        lengths = np.array([len(prompt) for prompt in prompts] + [0] * (rows - len(prompts)))
        mask = np.arange(-(-lengths.max() // chunk) * chunk) < lengths[:, None]
        tokens = np.zeros(mask.shape, np.int32)
        tokens[mask] = np.concatenate([np.asarray(prompt) for prompt in prompts])
        state = self._init(np.zeros(rows, np.int32))
        logits: Any = None
        for begin in range(0, mask.shape[1], chunk):
            columns = slice(begin, begin + chunk)
            new, state = self.prefill(state, tokens[:, columns], mask[:, columns])
            here = mask[:, columns].any(axis=1, keepdims=True)
            logits = new if logits is None else jnp.where(here, new, logits)
        return logits, state

    def _check(self, prompts: Sequence[Sequence[int]], new: int, stops: Sequence[int]) -> None:
        vocabulary, limit = self.manifest["vocab_size"], self.manifest["max_length"]
        _expect(len(prompts) > 0, "prompts", prompts, "at least one row")
        self._check_rows(len(prompts), exact=False)
        good = _is_whole(new) and 1 <= new <= _INT32_MAX
        _expect(good, "max_new_tokens", new, f"an integer, at least 1 and at most {_INT32_MAX}")
        for row in (*prompts, stops):
            wrong = [token for token in row if not (_is_whole(token) and 0 <= token < vocabulary)]
            _expect(not wrong, "tokens", wrong[:1], f"integers in [0, {vocabulary})")
        longest = max(map(len, prompts))
        _expect(all(map(len, prompts)), "prompts", "an empty row", "at least one token in each")
        fits = limit is None or longest + new <= limit
        _expect(fits, "max_new_tokens", new, f"at most {limit} tokens together with a prompt of {longest}")

    def _check_rows(self, rows: int, exact: bool = True) -> None:
        fixed = self.manifest["batch_size"]
        fits = fixed is None or rows == fixed or (rows < fixed and not exact)
        _expect(fits and rows >= 1, "rows", rows, f"{fixed or 'at least 1'}, as exported")


def read_tokenizer(path: Path) -> tuple[Callable[[str], list[int]], Callable[[Sequence[int]], str]]:
    """Return the functions text -> tokens and tokens -> text of a ``tokenizer.json``.

    Raises:
        ImportError: it needs the package tokenizers, which is missing.
        ValueError: the installed version of tokenizers cannot read it.
    """
    content = path.read_text(encoding="utf-8-sig")
    kind = json.loads(content).get("type")
    if kind == "byte":
        return (
            lambda text: list(text.encode("utf-8")),
            lambda ids: bytes(i for i in ids if i < 256).decode("utf-8", errors="replace"),
        )
    if kind == "dna":
        return _encode_nucleotides, lambda ids: "".join(_NUCLEOTIDES[i] for i in ids if i < len(_NUCLEOTIDES))
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(f"{path.name}: needs the package tokenizers: pip install tokenizers") from error
    try:
        tokenizer = tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library raises nothing more specific
        raise ValueError(f"{path}: tokenizers {tokenizers.__version__} cannot read it ({error})") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # a separator's name inside a text is plain text
    return (
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        lambda ids: _decode(tokenizer, ids),
    )


def _before(text: str, stops: Sequence[str]) -> str:
    """Return the text before the stop text that ends first, or all of it."""
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return text[: min(ends)[1]] if ends else text


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """Decode ids; in a run of byte tokens only the bytes that are in no character become U+FFFD.

    The library would replace the whole run, valid characters too.
    """
    decoder = tokenizer.decoder
    if decoder is None or b'"ByteFallback"' not in decoder.__getstate__():
        return tokenizer.decode(list(ids), skip_special_tokens=True)
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    entries = (
        entry for entry in map(tokenizer.id_to_token, ids) if entry is not None and entry not in special
    )
    read: list[str] = []
    for is_byte, group in itertools.groupby(entries, lambda entry: bool(_BYTE.fullmatch(entry))):
        if not is_byte:
            read += group
            continue
        for letter in bytes(int(entry[3:5], 16) for entry in group).decode("utf-8", "surrogateescape"):
            stray = "\udc80" <= letter <= "\udcff"
            read += ["\ufffd"] if stray else [f"<0x{byte:02X}>" for byte in letter.encode()]
    return decoder.decode(read)


_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")
_NUCLEOTIDES = "ACGTN"


def _encode_nucleotides(text: str) -> list[int]:
    """Encode nucleotides; IUPAC codes for several bases become N."""
    read = re.sub("[RYSWKMBDHV]", "N", text.upper().replace("U", "T"))
    other = re.search(f"[^{_NUCLEOTIDES}]", read)
    _expect(other is None, "prompt", text, "nucleotides: A C G T U N or another of IUPAC's codes")
    return [_NUCLEOTIDES.index(letter) for letter in read]


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a directory; check that it is unchanged and of a supported version.

    Raises:
        FileNotFoundError, ValueError: see `Exported.load`.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{path}: expected an exported directory, which has this file")
    size = path.stat().st_size
    _expect(size <= _MOST_BYTES, str(path), f"{size} bytes", f"at most {_MOST_BYTES}")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError(f'{path}: expected the entry "format": "{FORMAT}"')
    _expect(manifest.get("version") == VERSION, f"{path}: version", manifest.get("version"), f"{VERSION}")
    if manifest.get("sha256") != digest(manifest):
        raise ValueError(f"{path}: was changed after the export: its sha256 is another")
    return manifest


def record(sha256: str) -> None:
    """Record that the export with this manifest was made here, so that `Exported.load` trusts it.

    Does nothing if the user has no writable cache directory.
    """
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: there is no home directory
        _records().mkdir(parents=True, exist_ok=True)
        (_records() / sha256).touch()


def _records() -> Path:
    """Return ``~/.cache/based_jax/exports``, or that below XDG_CACHE_HOME: an empty file per sha256."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "based_jax" / "exports"


def _is_own(folder: Path, sha256: str) -> bool:
    """Return whether the directory is this file's own, or was exported here."""
    if folder.resolve() == Path(__file__).resolve().parent:
        return True
    with contextlib.suppress(OSError, RuntimeError):
        return (_records() / sha256).is_file()
    return False


def _read_weights(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Read the weights by name."""
    path, expected = _checked(folder, manifest["weights"]), manifest["values"]["params"]
    try:
        weights = load_file(str(path))
    except SafetensorError as error:
        raise ValueError(f"{path}: expected a safetensors file ({error})") from error
    found = {name: {"shape": list(leaf.shape), "dtype": str(leaf.dtype)} for name, leaf in weights.items()}
    wrong = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
    _expect(not wrong, f"{path}: arrays", wrong[:3], f"those that {MANIFEST} describes")
    return weights


def digest(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all other entries."""
    others = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


def avoid_broken_fusions() -> None:
    """Keep XLA from fusing around matrix products on a CPU where jaxlib's programs can be wrong (1e33).

    Seen with jaxlib 0.10.2 and 0.12.0. JAX reads the flag once, at its first use; later calls of this
    function warn instead.
    """
    flag = "--xla_cpu_experimental_ynn_fusion_type"
    version = tuple(int(part) for part in re.findall(r"\d+", metadata.version("jaxlib"))[:3])
    if not (0, 10, 2) <= version < (0, 13) or flag in os.environ.get("XLA_FLAGS", ""):
        return
    try:
        from jax._src.xla_bridge import backends_are_initialized as is_used
    except ImportError:  # private: without it too late a call is not noticed
        is_used = bool
    if not is_used():
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}=".strip()
    elif jax.default_backend() == "cpu":
        warnings.warn(
            f"JAX was used before Exported.load: call it first or set XLA_FLAGS={flag}= "
            "because this jaxlib's fusions of matrix products can be wrong on a CPU",
            stacklevel=3,
        )


def _check_environment(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Check that the installed jax can run the programs."""
    ours = jax.__version__
    version = manifest["calling_convention_version"]
    least = export.minimum_supported_calling_convention_version
    most = export.maximum_supported_calling_convention_version
    if not least <= version <= most:
        raise ValueError(
            f"{folder}: exported by jax {manifest['jax']} with calling convention {version}: "
            f"expected {least} to {most}, which jax {ours} supports; use the other jax or export again"
        )
    platform = export.default_export_platform()
    if platform not in manifest["platforms"]:
        raise ValueError(
            f"{folder}: exported for {', '.join(manifest['platforms'])}: expected {platform}, where this "
            f"process runs; export again with --platforms {platform}"
        )


def _checked(folder: Path, entry: Mapping[str, str]) -> Path:
    """Return a file's path after checking its SHA-256."""
    path = folder / entry["file"]
    if not path.is_file():
        raise FileNotFoundError(f"{path}: expected this file, which {MANIFEST} lists")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != entry["sha256"]:
        raise ValueError(f"{path}: cut, changed or of another export: its sha256 is not that of {MANIFEST}")
    return path


def _deserialize(path: Path, manifest: Mapping[str, Any]) -> export.Exported:
    """Deserialize a program; report one that this version of jax cannot read."""
    try:
        program = export.deserialize(bytearray(path.read_bytes()))
        if jax.__version__ != manifest["jax"]:
            _lower(program)
    except ImportError:
        raise
    except Exception as error:  # a newer format may raise anything
        wrote = f"what jax {manifest['jax']} wrote ({error!r:.200})"
        raise ValueError(f"{path}: jax {jax.__version__} cannot read {wrote}") from error
    return program


def _lower(program: export.Exported) -> None:
    """Parse a program's operations now, which otherwise happens at its first call."""
    flat = [
        jax.ShapeDtypeStruct([size if isinstance(size, int) else 1 for size in aval.shape], aval.dtype)
        for aval in program.in_avals
    ]
    arguments, _ = jax.tree.unflatten(program.in_tree, flat)
    jax.jit(program.call).lower(*arguments)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _expect(condition: bool, argument: str, value: Any, expected: str) -> None:
    if not condition:
        raise ValueError(f"{argument} = {value!r}: expected {expected}")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"run.py: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    parser = _Parser(description="Continue texts or rows of tokens with an exported language model.")
    prompts = parser.add_mutually_exclusive_group(required=True)
    add = prompts.add_argument
    add("--prompt", action="append", metavar="TEXT", help="a text to continue; may be repeated")
    add("--tokens", type=_tokens, action="append", metavar="1,2,3", help="or a row of tokens")
    add = parser.add_argument
    add("--directory", type=Path, default=Path(__file__).parent, help="exported directory; default: this one")
    add("--sha256", metavar="HEX", help="sha256 of its manifest, which the export printed")
    add("--trust", action="store_true", help="load a --directory from elsewhere without a check")
    add("--max-new-tokens", type=int, help="most tokens to make; default: 200, with --tokens 16")
    add("--temperature", type=float, default=0.0, help="0 takes the most likely token; larger is more random")
    add("--top-k", type=int, default=0, help="sample among this many tokens; 0 is all")
    add("--top-p", type=float, default=1.0, help="share of probability to sample from")
    add("--min-p", type=float, default=0.0, help="least share of the most likely token's probability")
    text = "above 1: tokens of the text become less likely"
    add("--repetition-penalty", type=float, default=1.0, help=text)
    add("--presence-penalty", type=float, default=0.0, help="subtracted from logits of made tokens")
    add("--frequency-penalty", type=float, default=0.0, help="the same, once per occurrence")
    add("--seed", type=int, default=0, help="seed of the sampling")
    add("--stop", action="append", default=[], metavar="TEXT", help="a text that ends a continuation")
    add("--stop-tokens", type=_tokens, default=[], metavar="0,1", help="tokens that end a row of --tokens")
    options = parser.parse_args(argv)
    if options.stop and options.tokens:
        parser.error("--stop goes with --prompt; with --tokens use --stop-tokens")
    if options.stop_tokens and options.prompt:
        parser.error("--stop-tokens goes with --tokens; with --prompt use --stop")
    if sys.stdout is None:  # closed by the caller
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (as long as the process)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        _run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("run.py: interrupted", file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"run.py: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def _run(options: argparse.Namespace) -> None:
    model = Exported.load(options.directory, sha256=options.sha256, trust=options.trust)
    sampling = {field.name: getattr(options, field.name) for field in dataclasses.fields(Sampling)}
    new = options.max_new_tokens
    new = (16 if options.tokens else 200) if new is None else new
    if options.tokens:
        for row in model.generate(options.tokens, new, stop_tokens=options.stop_tokens, **sampling):
            print(",".join(map(str, row)))
        return
    texts = model.generate_text(options.prompt, new, stop=options.stop, **sampling)
    for prompt, text in zip(options.prompt, texts, strict=True):
        print(prompt + text)


def _tokens(text: str) -> list[int]:
    try:
        return [int(token) for token in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected integers like 1,2,3") from None


if __name__ == "__main__":
    sys.exit(main())
