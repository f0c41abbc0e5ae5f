"""Upload models to the Hugging Face hub: config, safetensors, tokenizer and model card, in one commit."""

import importlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from based_jax.convert import hub
from based_jax.convert.model_card import CARD, ModelCard, is_ours, write_card
from based_jax.convert.pretrained import FORMAT, parse_config, read_card, read_config, save_pretrained
from based_jax.convert.shards import INDEX, SINGLE
from based_jax.files import read_text
from based_jax.models import LanguageModel, param_count
from based_jax.typing import Params
from based_jax.validate import expect

if TYPE_CHECKING:  # the data pipeline takes a second to import
    from based_jax.data.tokenizers import Tokenizer

SHARD_BYTES = 2 * 10**9
"""Maximum size of a file on the hub, which an interrupted upload or download has to repeat."""

_WEIGHTS = ("model-*-of-*.safetensors", SINGLE, INDEX, "pytorch_model*.bin", "pytorch_model*.bin.index.json")


class Pushed(NamedTuple):
    """A commit on the hub."""

    repository: str
    commit: str
    """commit hash, a `revision` for `load_pretrained`"""
    card: bool
    """whether README.md was uploaded; False if the hub has one that based_jax did not write"""


def push_to_hub(
    repository: str,
    model: LanguageModel,
    params: Params,
    *,
    tokenizer: "Tokenizer | None" = None,
    card: ModelCard | None = None,
    revision: str | None = None,
    private: bool | None = None,
    message: str | None = None,
    max_shard_bytes: int = SHARD_BYTES,
) -> Pushed:
    """Upload a model to the Hugging Face hub, in the native form of `save_pretrained`.

    The token is that of `hf auth login` or HF_TOKEN, the server that of HF_ENDPOINT.

    Args:
        repository: "owner/name", created if needed.
        tokenizer: uploaded with the model.
        card: facts for README.md in addition to the architecture.
        revision: branch to write to, created if needed; None is the main branch.
        private: whether a new repository is private; None for the account's default.
        message: commit message.
        max_shard_bytes: a larger model is uploaded as several files.

    Raises:
        ImportError: huggingface_hub is not installed.
        PermissionError, FileNotFoundError: the hub refuses access, or cannot be reached.
        ValueError: an invalid name, or parameters of another model.
    """
    with tempfile.TemporaryDirectory() as scratch:
        save_pretrained(scratch, model, params, card=card, max_shard_bytes=max_shard_bytes)
        if tokenizer is not None:
            tokenizer.save(scratch)
        return upload(scratch, repository, revision=revision, private=private, message=message)


def upload(
    directory: str | os.PathLike[str],
    repository: str,
    *,
    revision: str | None = None,
    private: bool | None = None,
    message: str | None = None,
) -> Pushed:
    """Upload a directory written by `save_pretrained`: its model, tokenizer and card, and nothing else.

    The same commit deletes weights on the hub that the new ones replace. A README.md on the hub that
    based_jax did not write is kept, unless the directory has one of your own; otherwise a card is generated
    for this repository. Arguments and errors are those of `push_to_hub`; a directory in the authors' form
    raises a ValueError, since its weights are a pickle.
    """
    folder = Path(directory)
    name, revision = hub.parse_id(repository, revision)
    config = read_config(folder)
    expect(config.get("format") == FORMAT, str(folder), "another form", "the native one, without pickles")
    library = hub.import_library(name)
    api = library.HfApi(library_name="based_jax")
    files = ["config.json", SINGLE, INDEX, "model-*-of-*.safetensors", *hub.TOKENIZER_FILES]
    with hub.explained(name, revision, "pushed to"):
        api.create_repo(name, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(name, branch=revision, exist_ok=True)
        keeps = _has_own_card(library, name, revision)
    model = parse_config(config, {}, folder)
    writes = write_card(folder, read_card(config), model, param_count(model), name)
    if not (writes and keeps):  # a user's own local README.md takes precedence
        files.append(CARD)
    with hub.explained(name, revision, "pushed to"):
        done: Any = api.upload_folder(
            repo_id=name,
            folder_path=folder,
            revision=revision,
            commit_message=message or "Upload a model of based_jax",
            allow_patterns=files,
            delete_patterns=list(_WEIGHTS),
        )
    return Pushed(name, done.oid, CARD in files)


def _has_own_card(library: Any, repository: str, revision: str | None) -> bool:
    """Return whether the hub has a README.md that based_jax did not write."""
    errors = importlib.import_module("huggingface_hub.errors")
    try:
        found = library.hf_hub_download(repository, CARD, revision=revision)
    except errors.RemoteEntryNotFoundError:
        return False
    return not is_ours(read_text(found))
