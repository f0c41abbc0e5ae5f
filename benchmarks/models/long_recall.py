"""Train four small models that recall needles, for `based-jax eval long` far beyond their training.

    python -m benchmarks.models.long_recall data  --out DATA
    python -m benchmarks.models.long_recall train --model based --data DATA --out runs/based

All models have the same width, MLPs and short convolution, and almost as many parameters; the window with
sinks has the bytes of Based's state. They learn from texts of `multi_query` (`single` for one needle) in 128
to 1,024 tokens, short ones first. After a text all its needles are asked for, one by one, then in half of the
texts some again, and only answers count in the loss. Seeds of these texts begin with "train"; those of `eval
long` are numbers.

Muon makes this a matter of minutes: with six layers, and texts that asked again more often, the loss of Based
was 1.2 after 250 steps with Muon, and with AdamW (at 3e-3) 3.2 then and 1.9 after 2,000.
"""

import functools
import json
import multiprocessing
import random
import re
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from tokenizers import Regex, pre_tokenizers

from based_jax.command import parse, run
from based_jax.convert.pretrained import save_pretrained
from based_jax.data.file_tokenizer import train_byte_level_bpe
from based_jax.data.tokenizers import Tokenizer, load_tokenizer
from based_jax.evals.long.questions import Material, make_question
from based_jax.files import write_lines
from based_jax.models import LanguageModel, ModelConfig
from based_jax.ops import cross_entropy
from based_jax.training.optimizer import OptimizerConfig, make_optimizer
from based_jax.typing import Params
from based_jax.validate import expect_ranges

PROGRAM = "python -m benchmarks.models.long_recall"

WIDTH, LENGTH = 64, 1024

ROWS, SEED = 8, 0
"""Rows of a step; seed of the parameters and of the choice of rows."""

OTHERS: Any = {"schedule": "linear", "final_learning_rate_share": 0.0, "warmup": 0.03, "beta2": 0.98}
"""Settings of the optimizer that are not its defaults."""

SLOTS = (128, 256, 512, 1024)
"""Lengths of texts; a row of `LENGTH` tokens has texts of one length."""

CONV = {"mixer": "gated_conv"}
LINEAR = {"mixer": "linear_attention", "options": {"feature_dim": 16}}
WINDOW = {"mixer": "sliding_window", "options": {"left": 63}}
SINKS = {"mixer": "sliding_window", "options": {"left": 66, "sinks": 4}}
DELTA = {"mixer": "gated_delta_net", "options": {"expand_v": 1.0}}
ATTENTION = {"mixer": "attention", "options": {"rotary_fraction": 0.5}}
MODELS = {
    "based": (LINEAR, WINDOW),
    "window": (SINKS, SINKS),
    "hybrid": (DELTA, WINDOW),
    "attention": (ATTENTION, ATTENTION),
}
"""The mixers after a short convolution."""

_NUMBER = " ?[0-9]{1,2}"  # a token of numbers, two digits at most


def make_tokenizer(path: Path) -> None:
    """Train a tokenizer whose tokens are the words of needles and two digits at a time; write its file."""
    family, material, texts = "multi_query", Material(needles=64), []
    for number in range(400):
        text = make_question(family, 8192, 0.5, f"train words {number}", load_tokenizer("byte"), material)
        texts += re.split(f"({_NUMBER})", text.prompt + " " + " ".join(text.answers))
    tokenizer = train_byte_level_bpe(iter(texts), 8192)
    numbers = pre_tokenizers.Split(Regex(_NUMBER), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([numbers, tokenizer.pre_tokenizer])
    path.write_text(tokenizer.to_str())


def make_text(slot: int, seed: str, tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of a text with its questions and answers, and which are of answers: both (slot,)."""
    rng = random.Random(f"train {slot} {seed}")
    count = rng.randint(1, (slot - 32) // 24)
    family, material = "multi_query" if count > 1 else "single", Material(needles=max(count, 2))
    length = rng.randint(45 + 17 * count, slot)  # at least the shortest text
    question = make_question(family, length, rng.random(), f"train {slot} {seed}", tokenizer, material)
    text, _, asked = question.prompt.rpartition("\nThe code of ")
    pairs = list(zip(asked.removesuffix(" is").split(", "), question.answers, strict=True))
    rng.shuffle(pairs)
    pairs += rng.choices(pairs, k=rng.choice((0, slot // 10)))
    parts = [([tokenizer.eot, *tokenizer.encode(text), *tokenizer.encode("\n")], False)]
    for key, value in pairs:
        parts += [(tokenizer.encode(f"The code of {key} is"), False), (tokenizer.encode(f" {value}\n"), True)]
    tokens, is_answer = np.full(slot, tokenizer.eot, np.uint16), np.zeros(slot, bool)
    joined = np.concatenate([part for part, _ in parts])[:slot]
    tokens[: joined.size] = joined
    is_answer[: joined.size] = np.concatenate([np.full(len(part), flag) for part, flag in parts])[:slot]
    return tokens, is_answer


def make_rows(number: int, *, rows: int, directory: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and answers, both (rows, LENGTH), of the texts with this number."""
    tokenizer, made = load_tokenizer(str(directory / "tokenizer.json")), []
    for row in range(rows):
        slot = SLOTS[row % len(SLOTS)]
        texts = [make_text(slot, f"{number}.{row}.{part}", tokenizer) for part in range(LENGTH // slot)]
        made.append([np.concatenate(arrays) for arrays in zip(*texts, strict=True)])
    tokens, is_answer = (np.stack(arrays) for arrays in zip(*made, strict=True))
    return tokens, is_answer


def texts_in(row: np.ndarray, tokenizer: Tokenizer) -> list[str]:
    """Return the texts of a row; a separator begins each, and others fill its part."""
    parts = np.split(row, np.flatnonzero(row == tokenizer.eot))
    return [text for part in parts if (text := tokenizer.decode(part[part != tokenizer.eot]))]


@dataclass(frozen=True)
class Data:
    """Make a tokenizer, the rows of tokens to train on, and their texts for `train linearize`."""

    out: Path
    """Directory of the files."""
    texts: int = 24576
    """Rows of 1,024 tokens."""

    def run(self) -> None:
        """Write the files; the rows are made by several processes."""
        expect_ranges(self, 1, "texts")
        self.out.mkdir(parents=True, exist_ok=True)
        make_tokenizer(self.out / "tokenizer.json")
        make, each = functools.partial(make_rows, rows=64, directory=self.out), range(-(-self.texts // 64))
        with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
            made = list(pool.map(make, each, chunksize=4))
        tokens, is_answer = (np.concatenate(arrays) for arrays in zip(*made, strict=True))
        np.save(self.out / "tokens.npy", tokens)
        np.save(self.out / "is_answer.npy", is_answer)
        tokenizer = load_tokenizer(str(self.out / "tokenizer.json"))
        texts = ({"text": text} for row in tokens for text in texts_in(row, tokenizer))
        write_lines(self.out / "texts.jsonl", texts)


def make_model(name: str, vocab_size: int) -> LanguageModel:
    """Build one of `MODELS`."""
    first, second = MODELS[name]
    mixers = {"C": CONV, "X": first, "Y": second}
    sizes = {"d_model": WIDTH, "mlp_hidden": 2 * WIDTH, "vocab_size": vocab_size, "max_length": LENGTH}
    return LanguageModel(ModelConfig.from_dict({**sizes, "schedule": "CXY", "mixers": mixers}))


def answers_in(is_answer: np.ndarray) -> np.ndarray:
    """Return where the targets of rows are answers: (1, a multiple of 1,024), filled with -1."""
    found = np.flatnonzero(is_answer[:, 1:])
    return np.pad(found, (0, -found.size % 1024), constant_values=-1).astype(np.int32)[None]


def make_step(model: LanguageModel, optimizer: optax.GradientTransformation, eot: int) -> Callable[..., Any]:
    """Return the training step, (parameters, memory, rows, answers) -> (parameters, memory, loss).

    Args:
        eot: the separator of documents, which starts each text.
    """

    def step(params: Params, memory: Any, rows: Any, answers: Any) -> Any:
        rows = rows.astype(jnp.int32)
        inputs, labels, weights = rows[:, :-1], rows[:, 1:].reshape(-1)[answers], answers >= 0
        segments = jnp.cumsum(inputs == eot, axis=1)

        def loss(params: Params) -> Any:
            hidden, _ = model.apply(params, inputs, segment_ids=segments, method="hidden")
            chosen = hidden.reshape(-1, hidden.shape[-1])[answers]
            nats = cross_entropy(chosen, model.output_embedding(params), labels, weights.astype(jnp.float32))
            return nats / weights.sum()

        value, gradients = jax.value_and_grad(loss)(params)
        changes, memory = optimizer.update(gradients, memory, params)
        return optax.apply_updates(params, changes), memory, value

    return step


@dataclass(frozen=True)
class Train:
    """Train a model and write its directory."""

    out: Path
    """Directory of the model."""
    data: Path
    """Directory of `data`."""
    model: Literal["based", "window", "hybrid", "attention"]
    """Which of the models."""
    steps: int = 3000
    """Steps of 8 rows."""
    learning_rate: float = 8e-3
    """Peak of the learning rate."""

    def run(self) -> None:
        """Train, with short texts first: recall emerges sooner."""
        expect_ranges(self, 1, "steps")
        tokenizer = load_tokenizer(str(self.data / "tokenizer.json"))
        tokens, is_answer = (np.load(self.data / f"{name}.npy") for name in ("tokens", "is_answer"))
        model = make_model(self.model, tokenizer.vocab_size)
        optimizer = make_optimizer(
            OptimizerConfig("muon", self.learning_rate, weight_decay=0.0, **OTHERS), self.steps
        )
        step = jax.jit(make_step(model, optimizer, tokenizer.eot), donate_argnums=(0, 1))
        params = nn.unbox(jax.jit(model.init)(jax.random.key(SEED), jnp.zeros((1, 1), jnp.int32)))
        memory, losses = optimizer.init(params), []
        rng, start = np.random.default_rng(SEED), time.monotonic()
        for count in range(1, self.steps + 1):
            done = (count - 1) / self.steps
            slots = min(1 + int(2 * len(SLOTS) * done), len(SLOTS))
            chosen = rng.integers(len(tokens) // len(SLOTS), size=ROWS) * len(SLOTS)
            chosen += rng.integers(slots, size=ROWS)
            params, memory, loss = step(params, memory, tokens[chosen], answers_in(is_answer[chosen]))
            if count % 50 == 0 or count == 1:
                losses.append((count, round(float(loss), 4)))
                seconds = time.monotonic() - start
                print(f"{self.model} step {count} loss {losses[-1][1]} {seconds:.1f} s", flush=True)
        save_pretrained(self.out, model, params)
        tokenizer.save(self.out)
        facts = {"steps": self.steps, "tokens": self.steps * ROWS * LENGTH, "losses": losses}
        facts |= {"learning_rate": self.learning_rate, "seconds": time.monotonic() - start}
        facts["device"] = jax.devices()[0].device_kind
        (self.out / "training.json").write_text(json.dumps(facts))


def main() -> None:
    """Run a command."""
    commands: Any = Data | Train
    parse(commands, None, prog=PROGRAM, pairs=False).run()


if __name__ == "__main__":
    run(PROGRAM, main)
