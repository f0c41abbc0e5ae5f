"""Write text with each token coloured by its loss, as one self-contained HTML file."""

import json
from html import escape
from pathlib import Path

import numpy as np

from based_jax.data import StreamDecoder, Tokenizer
from based_jax.evals.perplexity.records import Records

_SHADES = 16
_MOST_NATS = 8.0
"""Loss of the strongest colour, in nats."""

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; color: #222 }
body { padding: 0 1rem }
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
    shades = "".join(
        f".l{shade} {{ background: rgba(220, 60, 20, {0.75 * shade / (_SHADES - 1):.2f}) }}\n"
        for shade in range(1, _SHADES)
    )
    shown = min(len(records), max_tokens)
    title = escape(f"Loss per token: {records.info.get('checkpoint', 'a model')}")
    legend = "".join(
        f'<span class="l{shade}">&nbsp;{_MOST_NATS * shade / (_SHADES - 1):.1f}&nbsp;</span>'
        for shade in range(0, _SHADES, 3)
    )
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>\n'
        f"<style>{_STYLE}{shades}</style><h1>{title}</h1>\n"
        f"<p>Nats: {legend} or more. <span class='hit'>Underlined</span>: AR hits, the bigram came before "
        f"in the sequence and is rare in training. The first {shown:,} of {len(records):,} tokens of "
        f"{escape(str(records.info.get('data', 'a text')))}; the pointer shows the numbers.</p>\n"
        f'<div class="text">{_spans(records, hits, tokenizer, reference, shown)}</div></html>\n',
        encoding="utf-8",
    )


def _spans(
    records: Records, hits: np.ndarray, tokenizer: Tokenizer, reference: Records | None, shown: int
) -> str:
    decoder = StreamDecoder(tokenizer)
    parts, sequence = [], None
    for index in range(shown):
        if records.sequence[index] != sequence:
            parts.append("</section><section>" if parts else "<section>")
            sequence = records.sequence[index]
        token = int(records.target[index])
        name, faint = _show(tokenizer, token), ""
        if token == tokenizer.eot:
            text, faint = decoder.flush() + "\u00b6", " faint"
        else:
            text = decoder.feed(token)
        if not text:  # an incomplete character, shown at its last token
            text, faint = "\u00b7", " faint"
        shade = min(round(float(records.loss[index]) / _MOST_NATS * (_SHADES - 1)), _SHADES - 1)
        classes = f"l{shade}{' hit' if hits[index] else ''}{faint}"
        visible = text.translate(_CONTROLS).replace("\n", "\u21b5\n")
        hover = _numbers(records, index, name, _show(tokenizer, int(records.predicted[index])), reference)
        parts.append(f'<span class="{classes}" title="{escape(hover)}">{escape(visible)}</span>')
    return "".join([*parts, "</section>"])


def _numbers(records: Records, index: int, name: str, likely: str, reference: Records | None) -> str:
    loss, best = float(records.loss[index]), float(records.predicted_loss[index])
    lines = [f"{name}: {loss:.3f} nats, p = {np.exp(-loss):.3g}"]
    if reference is not None:
        lines.append(f"reference: {float(reference.loss[index]):.3f} nats")
    lines.append(f"most likely: {likely}, p = {np.exp(-best):.3g}")
    distance = int(records.distance[index])
    lines.append(f"bigram {distance} tokens ago" if distance else "bigram is new here")
    if records.count is not None:
        lines.append(f"bigram {int(records.count[index]):,} times in training")
    return "\n".join(lines)


def _show(tokenizer: Tokenizer, token: int) -> str:
    if token == tokenizer.eot:
        return "end of text"
    return json.dumps(tokenizer.decode([token]), ensure_ascii=False)
