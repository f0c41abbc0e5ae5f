"""The chat template of a model: where it is kept, and how it makes a prompt of messages.

    chat_template.jinja       the template, if there is such a file; else
    tokenizer_config.json     "chat_template": the template, or a list of them, each with a name
                              "bos_token", "eos_token", ...: what templates call special tokens by

These are transformers' files, and lie beside a model's weights. The rendered text is read with the names of
special tokens in it as these tokens, as transformers does; in a message such a name is broken up first, so
that nobody's message can end itself and begin another one's.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from based_jax.data.chat.renderer import Renderer
from based_jax.data.tokenizers import CHAT_FILES, Tokenizer
from based_jax.files import read_json, read_text
from based_jax.validate import expect

MAX_CHARACTERS = 1 << 17
"""of a template: those in use have some thousands"""

_FILE, _CONFIG = CHAT_FILES
_NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_BREAK = "\u200b"  # a space without width


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template, and the special tokens that it names."""

    source: str
    special_tokens: Mapping[str, str]
    """such as "bos_token" -> "<s>"; tokens that the model does not have are left out"""

    def __post_init__(self) -> None:
        size = len(self.source)
        expect(size <= MAX_CHARACTERS, "chat_template", f"{size} characters", f"at most {MAX_CHARACTERS}")

    @classmethod
    def read(cls, directory: Path) -> "ChatTemplate | None":
        """The template of a model in a directory; None if it has none.

        Raises:
            ValueError: a damaged or too large file, or several templates and none is called "default".
        """
        config, source = {}, None
        if (directory / _CONFIG).is_file():
            config = read_json(directory / _CONFIG)
            expect(isinstance(config, dict), str(directory / _CONFIG), type(config).__name__, "a JSON object")
            source = _one_of(config.get("chat_template"), directory / _CONFIG)
        if (directory / _FILE).is_file():
            source = read_text(directory / _FILE)
        if source is None:
            return None
        given = {f"{name}_token": _content(config.get(f"{name}_token")) for name in _NAMES}
        return cls(source, {name: token for name, token in given.items() if token is not None})


class Chat:
    """Makes prompts of conversations, by a template and the tokenizer that it is for.

    Raises:
        ImportError: jinja2 is missing.
        ValueError: a template that cannot be compiled.
    """

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._names = tokenizer, template.special_tokens
        self._special: Mapping[str, int] = getattr(tokenizer, "special_tokens", {})
        self._encode = getattr(tokenizer, "encode_special", tokenizer.encode)
        self._renderer = Renderer(template.source)
        ends = (tokenizer.eot, self._special.get(self._names.get("eos_token", "")))
        self.stop_tokens = tuple(sorted({token for token in ends if token is not None}))
        """tokens that end an answer: the tokenizer's separator, and the template's eos_token"""

    def text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """A conversation as text, up to where the model's answer begins.

        Args:
            messages: objects with "role" and "content", texts, and what else the template knows.

        Raises:
            ValueError: see `Renderer.render`.
        """
        fixed = {"add_generation_prompt": True, "tools": None, "documents": None}
        return self._renderer.render({"messages": self._broken(messages), **fixed, **self._names})

    def tokens(self, text: str) -> list[int]:
        """A conversation's tokens, from its text.

        If it does not begin with a special token it is read after the separator, as every document.
        """
        tokens = self._encode(text).tolist()
        begins = bool(tokens) and tokens[0] in self._special.values()
        return tokens if begins else [self._tokenizer.eot, *tokens]

    def close(self) -> None:
        """End the process that renders."""
        self._renderer.close()

    def _broken(self, value: Any) -> Any:
        """A value whose texts name no special token."""
        if isinstance(value, str):
            for name in self._special:
                value = value.replace(name, f"{name[0]}{_BREAK}{name[1:]}" if len(name) > 1 else _BREAK)
            return value
        if isinstance(value, Mapping):
            return {name: self._broken(part) for name, part in value.items()}
        return [self._broken(part) for part in value] if isinstance(value, Sequence) else value


def _one_of(value: Any, path: Path) -> str | None:
    """The template that an entry "chat_template" means."""
    if isinstance(value, list):
        entries = [entry for entry in value if isinstance(entry, dict) and isinstance(entry.get("name"), str)]
        named = {entry["name"]: entry.get("template") for entry in entries}
        expected = 'one template called "default" among several'
        expect("default" in named, f"{path}: chat_template", list(named), expected)
        value = named["default"]
    expect(value is None or isinstance(value, str), f"{path}: chat_template", value, "a text, or a list")
    return value


def _content(value: Any) -> str | None:
    """A special token's text, which may be described by an object."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None
