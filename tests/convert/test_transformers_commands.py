"""What people do with a downloaded model, for every family: text, chat, an export, fine-tuning, a card."""

import contextlib
import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from based_jax.convert.__main__ import main as convert
from based_jax.data import load_tokenizer
from based_jax.evals.card.__main__ import main as card
from based_jax.export.__main__ import main as export
from based_jax.generate.__main__ import main as generate
from based_jax.serve.__main__ import find_chat
from based_jax.training.commands.lm import main as train
from tests.convert.transformers_models.make import FIXTURES, HERE

CHARACTERS = ["<pad>", "<eos>", "<unk>", " ", "\n", ".", ":", *"abcdefghijklmnopqrstuvwxyz"]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


@pytest.fixture
def folder(request, tmp_path):
    """A directory as the hub has it: config, weights, a tokenizer of letters, and a chat template."""
    from tokenizers import Tokenizer, decoders, models

    for name in ("config.json", "model.safetensors"):
        shutil.copy(HERE / request.param / name, tmp_path)
    letters = {letter: number for number, letter in enumerate(CHARACTERS)}
    tokenizer = Tokenizer(models.BPE(letters, [], unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(CHARACTERS[:3])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {"eos_token": "<eos>", "chat_template": TEMPLATE}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("folder", FIXTURES, indirect=True)
def test_a_downloaded_model(folder, capsys):
    model = ["--checkpoint", str(folder)]
    assert generate([*model, "--prompt", "a b", "--max-new-tokens", "4", "--temperature", "0"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("a b")
    assert set(text) <= {"\n", *"".join(CHARACTERS[3:])}

    with contextlib.closing(find_chat(folder, load_tokenizer(str(folder)))) as chat:
        tokens = chat.tokens(chat.text([{"role": "user", "content": "hello"}]))
    assert "".join(CHARACTERS[token] for token in tokens).endswith("user: hello\nassistant:")

    sizes = ["--batch-size", "1", "--prefill-chunk", "16", "--decode-chunk", "4", "--max-length", "64"]
    assert export([*model, "--out", str(folder / "exported"), "--platforms", "cpu", *sizes]) == 0
    assert (folder / "exported" / "tokenizer.json").is_file()

    (folder / "text.txt").write_text("the quick brown fox.\n" * 100)
    run = str(folder / "run")
    steps = ["--steps", "2", "--length", "16", "--batch-size", "2", "--eval-every", "0", "--workdir", run]
    data = ["--data", str(folder / "text.txt")]
    assert train(["--init-from", str(folder), "--lora", "2", *data, *steps]) == 0

    back = folder / "back"
    convert([run, str(back), "--like", str(folder)])
    before, after = (load_file(place / "model.safetensors") for place in (folder, back))
    assert before.keys() == after.keys()
    assert any(not np.array_equal(before[name], after[name]) for name in before)

    cells = ["--lengths", "32", "--pairs", "4", "--examples", "4"]
    assert card(["--checkpoint", run, "--out", str(folder / "cards"), *cells]) == 0
    measured = json.loads((folder / "cards" / "run.json").read_text())
    assert measured["mqar"][0]["pairs"] == 4
    assert len(measured["parts"]["without"]) == len(set(measured["model"]["layers"]))
