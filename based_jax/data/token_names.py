"""Name single tokens: by their text, or as OpenAI's completions do, by their bytes (``bytes:\\xe2\\x98``)."""

from collections.abc import Iterable

from based_jax.data.file_tokenizer import FileTokenizer
from based_jax.data.tokenizers import Tokenizer, token_bytes


def token_text(tokenizer: Tokenizer, token: int) -> str | None:
    """Return the text of a token that follows others.

    None if it has no text, or if its bytes are not whole characters, or spell a character that has a token.
    """
    try:
        text = token_bytes(tokenizer, token).decode("utf-8")
    except UnicodeDecodeError:
        return None
    if isinstance(tokenizer, FileTokenizer) and token in tokenizer.byte_tokens:
        return None if text == " " or tokenizer.has_entry(text) else text
    return text or None


def token_name(tokenizer: Tokenizer, token: int) -> str:
    """Return a token's text, its bytes, its name in the vocabulary (special tokens), or ``token_id:N``."""
    if text := token_text(tokenizer, token):
        return text
    if data := token_bytes(tokenizer, token):
        letters = (chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02x}" for byte in data)
        return f"bytes:{''.join(letters)}"
    entry = tokenizer.token_entry(token) if isinstance(tokenizer, FileTokenizer) else None
    return entry or f"token_id:{token}"


def token_names(tokenizer: Tokenizer, tokens: Iterable[int]) -> dict[int, str]:
    """Return the names of some tokens, no two alike: a later one with the same name is ``token_id:N``."""
    names: dict[int, str] = {}
    for token in dict.fromkeys(tokens):
        name = token_name(tokenizer, token)
        names[token] = f"token_id:{token}" if name in names.values() else name
    return names
