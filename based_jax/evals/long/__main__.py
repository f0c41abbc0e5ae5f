"""Measure recall in long texts: ``based-jax eval long --checkpoint DIR --lengths 1k,4k,16k --out DIR``.

The output directory gets NAME.jsonl (a line per question), NAME.json (the summary), and index.html with every
model in the directory, so that several models are compared by one command each.
"""

import dataclasses
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from based_jax import command
from based_jax.data.tokenizers import NucleotideTokenizer
from based_jax.evals.card.subject import layers_of, name_of
from based_jax.evals.long.page import KEYS, finding, summarize, write_pages
from based_jax.evals.long.questions import FAMILIES, Material, make_question
from based_jax.evals.long.run import Item, ask, is_fasta, read_passages, read_sentences
from based_jax.evals.options import CheckpointOptions, Records, digest, write_json
from based_jax.evals.perplexity.scoring import expect_readable
from based_jax.generate.states import state_bytes
from based_jax.html_page import expect_result
from based_jax.models import param_count
from based_jax.validate import expect, expect_choice, expect_outputs, expect_ranges

PROG = "based-jax eval long"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CheckpointOptions):
    """Ask a language model about texts of any length, with answers anywhere in them."""

    out: Path
    """directory for NAME.jsonl, NAME.json and index.html, which shows all models in the directory"""
    name: str | None = None
    """name of the model; default: that of the checkpoint's directory"""
    lengths: str = "1k,4k,16k"
    """tokens of a prompt and its answer, separated by commas; 1k is 1,024"""
    families: str = "single,multi_key"
    """kinds of questions, separated by commas: single, multi_key, multi_value, multi_query, variables,
    common_words, frequent_words, qa (with --questions), or dna, which DNA's tokenizer can encode"""
    depths: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """positions of the answer in the text, from 0, its beginning, to 1, its end"""
    samples: int = 4
    """questions of each kind at each length and depth"""
    values: Literal["numbers", "words", "uuids"] = "numbers"
    """what needles hide"""
    haystack: str = "noise"
    """text around needles: noise (six sentences; for dna random bases), needles (with other keys), a text
    file, or for dna a FASTA file"""
    needles: int = 4
    """number of needles of multi_key, multi_value, multi_query and dna"""
    questions: Path | None = None
    """.jsonl file for qa, with text, question, and answer, one or a list of which any is right"""
    parts: bool = True
    """also ask with each kind of mixer switched off"""
    batch_size: int = 4
    """questions per batch; affects only speed and memory"""
    chunk: int = 512
    """prompt tokens of a question that are read at a time; affects only speed and memory"""
    seed: int = 0
    """seed of the questions"""

    def __post_init__(self) -> None:
        expect_ranges(self, 1, "samples", "batch_size", "chunk")
        expect_outputs(self, "json")
        expect(len(self.depths) > 0, "depths", self.depths, "at least one")
        families = self.families.split(",")
        for family in families:
            expect_choice("families", family, tuple(FAMILIES))
        for depth in self.depths:
            expect(0 <= depth <= 1, "depths", depth, "from 0 to 1")
        is_noise = self.haystack == "noise"
        good = families == ["dna"] if is_fasta(self.haystack) else is_noise or "dna" not in families
        expect(good, "haystack", self.haystack, "noise, a FASTA file for dna alone, or a text without dna")
        wanted = "a file if families has qa, and none otherwise"
        expect(("qa" in families) == (self.questions is not None), "questions", self.questions, wanted)
        self.tokens()

    def tokens(self) -> list[int]:
        """Return the lengths."""
        found = []
        for word in self.lengths.split(","):
            parts = re.fullmatch(r"(\d{1,6})(k?)", word.strip().lower())
            expect(parts is not None, "lengths", word, "numbers of tokens such as 512 or 16k")
            assert parts is not None
            found.append(int(parts[1]) * (1024 if parts[2] else 1))
        return sorted(set(found))

    def material(self) -> Material:
        """Read what questions are made of."""
        sentences = {}
        if self.haystack != "noise":
            lines = () if self.haystack == "needles" else read_sentences(self.haystack)
            sentences = {"sentences": tuple(lines)}
        passages = () if self.questions is None else tuple(read_passages(self.questions))
        return Material(self.values, needles=self.needles, passages=passages, **sentences)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = command.parse(Options, argv, prog=PROG)
    material = options.material()
    model, params, tokenizer, directory = opened = options.open()
    families, lengths = dict.fromkeys(options.families.split(",")), options.tokens()
    good = not isinstance(tokenizer, NucleotideTokenizer) or [*families] == ["dna"]
    expect(good, "families", options.families, "dna, which is all that the model's tokenizer can encode")
    expect_readable(model, "lengths", lengths[-1])
    numbers = [f"{options.seed}.{number}" for number in range(options.samples)]
    each = [*itertools.product(families, lengths, dict.fromkeys(options.depths), numbers)]
    for family, length, depth, number in each:  # a text that does not fit is an error before the work
        make_question(family, length, depth, number, tokenizer, material, is_shortest=True)
    name = options.name or name_of(directory)
    expect_result(options.out, name, KEYS)
    off = (None, *(layers_of(model) if options.parts else ()))
    items = [Item(mixer, *question) for mixer in off for question in each]

    depends = "model, tokenizer, dtype, haystack, needles, values and questions; choose another --name"
    records = Records(options.out / f"{name}.jsonl", digest(opened, material=repr(material)), str, depends)
    how = {"batch_size": options.batch_size, "chunk": options.chunk}
    batches = ask(items, model, params, tokenizer, material, records, **how)
    found = records.collect(PROG, name, "questions", [item.id for item in items], batches)
    layers = [model.config.layer(index).mixer for index in range(model.config.num_layers)]
    state = [{"length": length, "bytes": state_bytes(model, length)} for length in lengths]
    card = {"name": name, "layers": layers, "parameters": param_count(model.config), "state": state}
    card |= summarize(found)
    path = write_pages(options.out, card)
    write_json(options.json, card)
    print(f"{finding(card)}\n{path} and {options.out / 'index.html'}")
    return 0


if __name__ == "__main__":
    command.run(PROG, main)
