"""Checkpoints from the Hugging Face hub: which files are fetched, and what can go wrong in one line."""

import importlib
import re
from pathlib import Path

TOKENIZER_FILES = (
    *("tokenizer*.json", "special_tokens_map.json", "vocab.json", "merges.txt"),
    "chat_template.jinja",
)
PATTERNS = ("config.json", "*.safetensors", "*.bin", "*.index.json", *TOKENIZER_FILES)
"""Weights, their description and the tokenizer: never code."""

_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*|[\w-][\w.-]*")


def is_hub_id(source: str) -> bool:
    """Whether `source` could be the name of a hub repository: "owner/name" or "name"."""
    return _ID.fullmatch(source) is not None


def fetch(repository: str) -> Path:
    """The local directory with a repository's files, downloaded or taken from the cache.

    Raises:
        ImportError: huggingface_hub is not installed.
        FileNotFoundError: nothing could be fetched.
    """
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise ImportError(
            f"{repository!r} is not a directory; to fetch it from the hub, install huggingface_hub "
            "(pip install 'based-jax[hub]')"
        ) from error
    try:
        return Path(hub.snapshot_download(repository, allow_patterns=list(PATTERNS)))
    except (OSError, ValueError, RuntimeError) as error:
        # Its errors are many, most of them OSErrors: no network, no such repository, not allowed, no space.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise FileNotFoundError(
            f"{repository!r} is neither a directory nor could it be fetched from the hub: {reason}"
        ) from error
