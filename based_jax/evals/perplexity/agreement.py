"""Color tokens by which of two models predict them (Zoology, D.1.1).

A model predicts a token if that is its most likely one. There are four cases: both models are right, both are
wrong, only the first is right, only the second is right.
"""

from html import escape

import numpy as np

from based_jax.data import Tokenizer
from based_jax.evals.perplexity.annotated import Coloring, name_token
from based_jax.evals.perplexity.records import Records
from based_jax.typing import Bool

_CASES = {
    "both": ("both right", "#cfe8cf"),
    "neither": ("both wrong", "#dddddd"),
    "first": ("only the first right", "#9fcaf2"),
    "second": ("only the second right", "#f8c173"),
}
"""Class, description and background of each case."""


def cases(records: Records, reference: Records) -> list[str]:
    """Return the case of each token: "both", "neither", "first" or "second"."""
    first, second = (each.predicted == each.target for each in (records, reference))
    return np.select([first & second, first, second], ["both", "first", "second"], "neither").tolist()


def by_agreement(
    records: Records, reference: Records, hits: Bool[np.ndarray, " n"], tokenizer: Tokenizer
) -> Coloring:
    """Color each token by its case; where the predictions differ, they follow it as "first | second".

    Args:
        records, reference: of the first and the second model on the same tokens.
        hits: mask of the AR hits, whose shares the legend shows as well.
    """
    classes = np.array(cases(records, reference))
    names = (escape(str(each.info.get("checkpoint", "a model"))) for each in (records, reference))
    entries = []
    for case, (meaning, _) in _CASES.items():
        shares = [f"{np.mean(classes == case):.1%} of the tokens"]
        if hits.any():
            shares.append(f"{np.mean(classes[hits] == case):.1%} of the AR hits")
        entries.append(f'<span class="{case}">&nbsp;{meaning}&nbsp;</span> {", ".join(shares)}')
    legend = "First model: {}; second: {}. {}. Where their predictions differ, both follow the token.".format(
        *names, "; ".join(entries)
    )
    notes = {
        int(index): f"{name_token(tokenizer, records.predicted[index])} | "
        f"{name_token(tokenizer, reference.predicted[index])}"
        for index in np.flatnonzero(records.predicted != reference.predicted)
    }
    style = "".join(f".{case} {{ background: {color} }}\n" for case, (_, color) in _CASES.items())
    return Coloring("Which model predicts each token", legend, style, classes.tolist(), notes)
