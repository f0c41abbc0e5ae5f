"""Models to the Hugging Face hub: config, safetensors, tokenizer and model card, as one commit."""

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
"""Of a file on the hub: what an upload or download that was ended has to begin again."""

_WEIGHTS = ("model-*-of-*.safetensors", SINGLE, INDEX, "pytorch_model*.bin", "pytorch_model*.bin.index.json")


class Pushed(NamedTuple):
    """A commit on the hub."""

    repository: str
    commit: str
    """hash, the `revision` with which `load_pretrained` loads exactly this"""
    card: bool
    """whether README.md was uploaded; False where the hub has one of someone's own"""


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
    """Upload a model to the Hugging Face hub, in the form that `save_pretrained` writes.

    The token is that of `hf auth login` or HF_TOKEN, the server that of HF_ENDPOINT.

    Args:
        repository: "owner/name", created if need be.
        tokenizer: uploaded beside the model.
        card: what README.md says beside the architecture.
        revision: branch to write to, created if need be; None is the main branch.
        private: of a new repository; None takes the account's default.
        message: of the commit.
        max_shard_bytes: a larger model is uploaded as several files.

    Raises:
        ImportError: huggingface_hub is not installed.
        PermissionError, FileNotFoundError: the hub refuses, or cannot be reached.
        ValueError: a name that is none; parameters of another model.
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
    """Upload a directory that `save_pretrained` wrote: its model, tokenizer and card, and nothing else.

    Weights on the hub that the new ones replace are deleted by the same commit. A README.md on the hub that
    was not written here is kept, unless the directory has one of your own; the directory's is else written
    anew, for this repository. Arguments and errors are those of `push_to_hub`; a directory in the authors'
    form is a ValueError, since its weights are a pickle.
    """
    folder = Path(directory)
    name, revision = hub.parse_id(repository, revision)
    config = read_config(folder)
    expect(config.get("format") == FORMAT, str(folder), "another form", "the native one, without pickles")
    library = hub.library(name)
    api = library.HfApi(library_name="based_jax")
    files = ["config.json", SINGLE, INDEX, "model-*-of-*.safetensors", *hub.TOKENIZER_FILES]
    with hub.explained(name, revision, "pushed to"):
        api.create_repo(name, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(name, branch=revision, exist_ok=True)
        keeps = _has_own_card(library, name, revision)
    model = parse_config(config, {}, folder)
    writes = write_card(folder, read_card(config), model, param_count(model), name)
    if not (writes and keeps):  # a local page of one's own wins
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
    """Whether the hub has a README.md that was not written here."""
    errors = importlib.import_module("huggingface_hub.errors")
    try:
        found = library.hf_hub_download(repository, CARD, revision=revision)
    except errors.RemoteEntryNotFoundError:
        return False
    return not is_ours(read_text(found))
