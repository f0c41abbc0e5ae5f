"""The checkpoint of an evaluation: its flags, how it is opened, and a digest that names a run."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from based_jax.convert.pretrained import find_directory, load_pretrained
from based_jax.convert.tokenizer import find_tokenizer
from based_jax.data.tokenizers import Tokenizer
from based_jax.models.language_model import LanguageModel
from based_jax.typing import Params


class Opened(NamedTuple):
    """A checkpoint to evaluate."""

    model: LanguageModel
    params: Params
    tokenizer: Tokenizer
    directory: Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """Options that evaluations of a checkpoint share."""

    checkpoint: str
    """pretrained directory (config.json, weights, tokenizer), a run's directory, or a hub id"""
    tokenizer: str | None = None
    """byte, dna, gpt2 (if cached locally), a tokenizers JSON file or its directory,
    instead of the checkpoint's own"""
    dtype: Literal["float32", "bfloat16"] | None = None
    """compute dtype, instead of the checkpoint's; the authors evaluated Based in bfloat16"""
    batch_size: int = 8
    """rows per call; affects only the speed"""
    json: Path | None = None
    """write all results to this file"""

    def open(self) -> Opened:
        """Open the checkpoint and its tokenizer."""
        directory = find_directory(self.checkpoint)
        model, params = load_pretrained(directory, dtype=self.dtype)
        tokenizer = find_tokenizer(directory, self.tokenizer, model.config.vocab_size)
        return Opened(model, params, tokenizer, directory)


_SPELLED = "What decides the answers, beside the weights: The code is 12.\n"
_VALUES = 64  # of each parameter in the digest


def digest(opened: Opened, **settings: Any) -> str:
    """Return a short name of a run, the same on any machine for equal settings, tokenizers and weights."""
    tokenizer = opened.tokenizer
    settings["model"] = opened.model.config.to_dict()
    spelled = tokenizer.encode("ACGT" if tokenizer.name == "dna" else _SPELLED).tolist()
    settings["tokenizer"] = [tokenizer.vocab_size, tokenizer.eot, spelled]
    parts = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for leaf in jax.tree.leaves(opened.params):
        parts.update(np.asarray(leaf.reshape(-1)[:_VALUES]).tobytes())
    return parts.hexdigest()[:16]
