"""Train a byte-level BPE tokenizer: ``based-jax train tokenizer --data DIR --vocab-size 8192 --out FILE``.

The text is streamed; memory grows with the number of different words. The command reads the same text as
``train tokenize`` with the same flags, held-out documents included.
"""

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from based_jax import command
from based_jax.data.documents import Document, report_table
from based_jax.data.file_tokenizer import LEAST_VOCABULARY, train_byte_level_bpe
from based_jax.data.readers import ReadOptions
from based_jax.data.reading import read_all
from based_jax.data.shards.blocks import find_sources
from based_jax.files import whole_file
from based_jax.validate import expect, expect_range, expect_writable

PROG = "based-jax train tokenizer"


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """Train a byte-level BPE tokenizer, for --tokenizer of train lm and train tokenize."""

    data: tuple[str, ...]
    """sources as of train tokenize: stdlib, files, directories, globs, hf:NAME[:[CONFIG:]SPLIT]"""
    vocab_size: int
    """tokens, of which 257 are the bytes and the document separator"""
    out: Path
    """new JSON file of the tokenizers library"""
    include: str | None = None
    """also read these files as plain text, e.g. '*.rst,README'; '*' is every file"""
    reading: Annotated[ReadOptions, tyro.conf.arg(name="")] = ReadOptions()  # noqa: RUF009

    def __post_init__(self) -> None:
        expect(bool(self.data), "data", self.data, "at least one source")
        expect_range("vocab_size", self.vocab_size, LEAST_VOCABULARY)
        expect(not self.out.exists(), "out", str(self.out), "a new file")
        expect_writable(self, "out")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    config = command.parse(TokenizerConfig, argv, prog=PROG)
    sources = find_sources(config.data, config.include)
    files = [file.report() for file in sources.files]
    found = read_all(sources.files, files, config.reading)
    texts = (item.text for item in found if isinstance(item, Document))
    tokenizer = train_byte_level_bpe(texts, config.vocab_size, show_progress=sys.stderr.isatty())
    problem = next((f"; {file.message}" for file in files if file.message), "")
    has_text = any(file.documents for file in files)
    expect(has_text, "data", " ".join(config.data), f"text{problem}")
    config.out.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(config.out) as file:
        file.write(tokenizer.to_str(pretty=True).encode())
    print(report_table([*files, *sources.others]))
    print(f"{config.out}: {tokenizer.get_vocab_size():,} tokens")
    out = shlex.quote(str(config.out))
    print(f"next: --tokenizer {out} of train tokenize or train lm, with the same flags of reading")
    return 0
