"""Write text with tokens coloured by their loss as one self-contained HTML file."""

import json
from html import escape
from pathlib import Path

import numpy as np

from based_jax import html_page
from based_jax.data import StreamDecoder, Tokenizer
from based_jax.data.token_names import token_name, token_text
from based_jax.evals.perplexity.records import Records
from based_jax.html_page import STYLE

_SHADES = 16
_MOST_NATS = 8.0
"""Loss of the strongest colour, in nats."""

_STYLE = """
.text { font: 14px/1.7 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere }
.text section { border-top: 1px solid #ccc; padding: .5rem 0 }
.hit { border-bottom: 2px solid #06c }
.faint { color: #999 }
"""
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}


def write_page(
    path: Path,
    records: Records,
    hits: np.ndarray,
    tokenizer: Tokenizer,
    *,
    reference: Records | None = None,
    max_tokens: int = 20_000,
) -> None:
    """Write the page: one section per sequence, AR hits underlined, numbers shown on hover.

    Args:
        hits: mask of the AR hits.
        reference: records of another model on the same tokens, shown with the model's.
        max_tokens: number of tokens to show, from the start.
    """
    shades = range(_SHADES)
    style = "".join(
        f".l{shade} {{ background: rgba(220, 60, 20, {0.75 * shade / (_SHADES - 1):.2f}) }}\n"
        for shade in shades[1:]
    )
    legend = "".join(
        f'<span class="l{shade}">&nbsp;{_MOST_NATS * shade / (_SHADES - 1):.1f}&nbsp;</span>'
        for shade in shades[::3]
    )
    shown = min(len(records), max_tokens)
    title = f"Loss per token: {records.info.get('checkpoint', 'a model')}"
    facts = (
        f"<p>Nats: {legend} or more. <span class='hit'>Underlined</span>: AR hits, the bigram came before "
        f"in the sequence and is rare in training. The first {shown:,} of {len(records):,} tokens of "
        f"{escape(str(records.info.get('data', 'a text')))}; the pointer shows the numbers.</p>"
    )
    spans = f'<div class="text">{_spans(records, hits, tokenizer, reference, shown)}</div>'
    html_page.write_page(path, title, [facts, spans], STYLE + _STYLE + style)


def _spans(
    records: Records, hits: np.ndarray, tokenizer: Tokenizer, reference: Records | None, shown: int
) -> str:
    shades = np.rint(np.minimum(records.loss / _MOST_NATS, 1) * (_SHADES - 1)).astype(int)
    decoder = StreamDecoder(tokenizer)
    parts, sequence = [], None
    for index in range(shown):
        if records.sequence[index] != sequence:
            parts.append("</section><section>" if parts else "<section>")
            sequence = records.sequence[index]
        token = int(records.target[index])
        faint = ""
        if token == tokenizer.eot:
            text, faint = decoder.flush() + "\u00b6", " faint"
        else:
            text = decoder.feed(token)
        if not text:  # an incomplete character, shown at its last token
            text, faint = "\u00b7", " faint"
        classes = f"l{shades[index]}{' hit' if hits[index] else ''}{faint}"
        visible = text.translate(_CONTROLS).replace("\n", "\u21b5\n")
        hover = _numbers(records, index, tokenizer, reference)
        parts.append(f'<span class="{classes}" title="{escape(hover)}">{escape(visible)}</span>')
    return "".join([*parts, escape(decoder.flush()), "</section>"])


def _numbers(records: Records, index: int, tokenizer: Tokenizer, reference: Records | None) -> str:
    loss = float(records.loss[index])
    name = _name(tokenizer, records.target[index])
    lines = [f"{name}: {loss:.3f} nats, p = {np.exp(-loss):.3g}"]
    if reference is not None:
        lines.append(f"reference: {float(reference.loss[index]):.3f} nats")
    for whose, found in (("", records), ("reference's ", reference)):
        if found is not None:
            likely, best = _name(tokenizer, found.predicted[index]), float(found.predicted_loss[index])
            lines.append(f"{whose}most likely: {likely}, p = {np.exp(-best):.3g}")
    distance = int(records.distance[index])
    lines.append(f"bigram {distance} tokens ago" if distance else "bigram is new here")
    if records.count is not None:
        lines.append(f"bigram {int(records.count[index]):,} times in training")
    return "\n".join(lines)


def _name(tokenizer: Tokenizer, token: int) -> str:
    """Return a token's text in quotation marks, or a name for one without: "end of text", "bytes:\\xe2"."""
    if token == tokenizer.eot:
        return "end of text"
    text = token_text(tokenizer, int(token))
    return token_name(tokenizer, int(token)) if text is None else json.dumps(text, ensure_ascii=False)
