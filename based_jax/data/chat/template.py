"""Read a model's chat template and turn messages into a prompt.

    chat_template.jinja       the template, if there is such a file; else
    tokenizer_config.json     "chat_template": the template, or a list of named ones
                              "bos_token", "eos_token", ...: special tokens that templates refer to

These are transformers' files, next to a model's weights. As in transformers, the names of special tokens in
the rendered text are encoded as these tokens. In messages they are marked first and stay text, so that a
message cannot end itself and start another.
"""

import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from based_jax.data.chat import child
from based_jax.data.file_tokenizer import BREAK, FileTokenizer
from based_jax.data.tokenizers import (
    CONFIG_FILE,
    TEMPLATE_FILE,
    Tokenizer,
    special_names,
    stop_tokens,
    text_start,
)
from based_jax.files import read_object, read_text
from based_jax.validate import expect

MAX_CHARACTERS = 1 << 17
"""Size limit of a template; typical ones have some thousands of characters."""

_END = "\ufdd1"
"""A noncharacter that marks the end of a message that the model continues."""


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template, and the special tokens that it names."""

    source: str
    special_tokens: Mapping[str, str]
    """such as "bos_token" -> "<s>"; without tokens that the model lacks"""

    def __post_init__(self) -> None:
        size = len(self.source)
        expect(size <= MAX_CHARACTERS, "chat_template", f"{size} characters", f"at most {MAX_CHARACTERS}")

    @classmethod
    def read(cls, directory: Path) -> "ChatTemplate | None":
        """Read the template of a model in a directory; None if it has none.

        Raises:
            ValueError: a damaged or too large file, or several templates of which none is called "default".
        """
        config, source = {}, None
        if (directory / CONFIG_FILE).is_file():
            config = read_object(directory / CONFIG_FILE)
            source = _one_of(config.get("chat_template"), directory / CONFIG_FILE)
        if (directory / TEMPLATE_FILE).is_file():
            source = read_text(directory / TEMPLATE_FILE)
        if source is None:
            return None
        return cls(source, special_names(config))

    def writes(self, token: str) -> bool:
        """Return whether the template contains a name like <|user|>, and does not look for it in messages."""
        quoted = rf"""['"]{re.escape(token)}['"]"""
        looks = re.search(rf"{quoted}\s+(not\s+)?in\b|split\(\s*{quoted}", self.source)
        return bool(re.fullmatch(r"<.+>|\[.+\]", token)) and token in self.source and not looks


class Renderer:
    """One template and the process that renders it, which is restarted after the template exceeds its limits.

    Thread-safe; renders one conversation at a time.

    Raises:
        ImportError: jinja2 is missing.
        ValueError: a template that cannot be compiled; see also `render`.
    """

    def __init__(self, template: str) -> None:
        if importlib.util.find_spec("jinja2") is None:
            raise ImportError("chat templates need jinja2: pip install 'based-jax[chat]'")
        self._template = template
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        with self._lock:
            self._start()

    def render(self, variables: Mapping[str, Any]) -> str:
        """Render the template with JSON-serializable variables.

        Raises:
            ValueError: the template raises an error, or needs more than `child.SECONDS` or `child.BYTES`.
        """
        with self._lock:
            if self._process is None:
                self._start()
            return self._ask(dict(variables))

    def close(self) -> None:
        """End the process; a later `render` starts another."""
        with self._lock:
            self._end()

    def _start(self) -> None:
        # -P: do not put the script's directory first in the module search path.
        command = [sys.executable, "-P", child.__file__]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        try:
            self._ask(self._template)
        except ValueError:
            self._end()
            raise

    def _ask(self, value: Any) -> str:
        process, line = self._process, b""
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(value).encode("ascii") + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:  # the process has ended
            pass
        if not line.endswith(b"\n"):
            self._end()
            limits = f"{child.SECONDS} seconds and {child.BYTES >> 20} MiB"
            raise ValueError(f"the chat template was ended: expected one that needs at most {limits}")
        reply = json.loads(line)
        if "text" not in reply:  # one line, whatever message the template raised
            reason = "".join(letter if letter.isprintable() else " " for letter in reply["error"])
            raise ValueError(f"the chat template failed ({reason})")
        return reply["text"]

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            with self._process:  # closes its pipes and waits for it
                pass
            self._process = None


class Chat:
    """Turn conversations into prompts, with a template and its tokenizer.

    Raises:
        ImportError: jinja2 is missing.
        ValueError: a template that cannot be compiled.
    """

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        ends = stop_tokens(tokenizer)
        if isinstance(tokenizer, FileTokenizer):
            written = filter(template.writes, tokenizer.added_tokens)
            tokenizer = tokenizer.with_special([*template.special_tokens.values(), *written])
        self._tokenizer, self._names = tokenizer, template.special_tokens
        self._special: Mapping[str, int] = getattr(tokenizer, "special_tokens", {})
        self._encode = getattr(tokenizer, "encode_special", tokenizer.encode)
        self._renderer, self.source = Renderer(template.source), template.source
        end = self._special.get(self._names.get("eos_token", ""))
        self.stop_tokens = tuple(sorted({*ends, *(() if end is None else (end,))}))
        """tokens that end an answer: the tokenizer's, and the template's eos_token"""

    def text(self, messages: Sequence[Mapping[str, Any]], *, continues: bool = False) -> str:
        """Render a conversation as text, up to the start of the model's answer.

        Args:
            messages: objects with the strings "role" and "content", and other entries that the template uses.
            continues: end after the content of the last message, which the model continues.

        Raises:
            ValueError: see `Renderer.render`; a template without the last message, if it is continued.
        """
        fixed = {"add_generation_prompt": not continues, "tools": None, "documents": None}
        shown = self._broken(messages)
        if continues:
            expect(bool(shown), "messages", messages, "at least one, which the model continues")
            # The space after the mark shows whether the template trims messages.
            shown[-1] = {**shown[-1], "content": f"{shown[-1]['content']}{_END} "}
        text = self._renderer.render({"messages": shown, **fixed, **self._names})
        if not continues:
            return text
        text, mark, rest = text.rpartition(_END)
        expect(bool(mark), "messages[-1]", messages[-1], "a message that the chat template writes")
        return text if rest.startswith(" ") else text.rstrip()

    def tokens(self, text: str) -> list[int]:
        """Encode a conversation's text.

        If it does not begin with a special token, the separator is put first, as for every document.
        """
        tokens = self._encode(text).tolist()
        begins = bool(tokens) and tokens[0] in self._special.values()
        return tokens if begins else [text_start(self._tokenizer), *tokens]

    def close(self) -> None:
        """End the rendering process."""
        self._renderer.close()

    def _broken(self, value: Any) -> Any:
        """Return `value` with the names of special tokens in its strings marked as text."""
        if isinstance(value, str):
            for name in self._special:
                value = value.replace(name, f"{name[0]}{BREAK}{name[1:]}" if len(name) > 1 else BREAK)
            return value
        if isinstance(value, Mapping):
            return {name: self._broken(part) for name, part in value.items()}
        return [self._broken(part) for part in value] if isinstance(value, Sequence) else value


def _one_of(value: Any, path: Path) -> str | None:
    """Return the template of an entry "chat_template"."""
    if isinstance(value, list):
        entries = [entry for entry in value if isinstance(entry, dict) and isinstance(entry.get("name"), str)]
        named = {entry["name"]: entry.get("template") for entry in entries}
        expected = 'one template called "default" among several'
        expect("default" in named, f"{path}: chat_template", list(named), expected)
        value = named["default"]
    expect(value is None or isinstance(value, str), f"{path}: chat_template", value, "a text, or a list")
    return value
