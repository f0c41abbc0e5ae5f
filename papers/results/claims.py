"""Recompute the claims of the papers' texts from their tables."""

from math import log
from statistics import fmean, median

from based_jax.published.tables import Row, Table, number, table

RECALL = ("swde", "fda", "squad_completion")
AR_HITS = 0.0703
"""Share of AR hits that reproduces nearly all of Zoology's printed shares of the gap; its text has .064."""


def recomputed() -> dict[str, float]:
    """Return the claims by their name in the table "claims", in its unit, if a table supports them."""
    return {**_recall(), **_throughput(), **_gaps(), **_selection()}


def gap_share(model: Row, attention: Row, ar_hits: float = AR_HITS) -> float:
    """Return how much of a model's gap to attention comes from AR hits, in percent (Zoology, C.1).

    min((l_H^m - l_H^a) p_H / (l^m - l^a), 1), where l are log-perplexities, l_H those of the hits, and p_H is
    the share of hits; 100 for a model that is not worse overall.
    """
    gap = log(number(model, "ppl") / number(attention, "ppl"))
    hits = log(number(model, "ppl_ar") / number(attention, "ppl_ar"))
    return 100.0 if gap <= 0 else 100 * min(hits * ar_hits / gap, 1.0)


def hit_share(row: Row) -> float:
    """Return the share of AR hits, in percent, that a row's three perplexities imply.

    log ppl = p log ppl_ar + (1 - p) log ppl_other for any model, so a row whose p differs from that of its
    neighbours has a misprint.
    """
    every, hits, other = (log(number(row, column)) for column in ("ppl", "ppl_ar", "ppl_other"))
    return 100 * (other - every) / (other - hits)


def against_attention(found: Table) -> list[tuple[Row, Row]]:
    """Pair each row of a table of Zoology with the attention row of its scale, the last one above it."""
    pairs, attention = [], found.rows[0]
    for row in found.rows:
        if row["model"] == "Attention":
            attention = row
        else:
            pairs.append((row, attention))
    return pairs


def _lead(row: Row, other: Row, column: str) -> float:
    return number(row, column) - number(other, column)


def _recall() -> dict[str, float]:
    def lead(name: str, better: str, worse: str) -> float:
        by_size = {row["size"]: row for row in table(name).rows}
        return fmean(_lead(by_size[better], by_size[worse], task) for task in RECALL)

    new, old = "based_table_1", "based_table_1_v1"
    based, mamba = table(old).row(model="Based", size="363m"), table(old).row(model="Mamba", size="358m")
    return {
        "recall_1b_10b": lead(new, "1.35b/10b", "1.32b/10b"),
        "recall_1b_50b": lead(new, "1.35b/50b", "1.32b/50b"),
        "recall_360m_10b": lead(new, "363m/10b", "358m/10b"),
        "recall_360m_30b": lead(new, "363m/30b", "358m/30b"),
        "recall_v1": lead(old, "1.35b", "1.32b"),
        "ar_ppl_v1": _lead(mamba, based, "ppl_ar"),
        "recall_attention_mamba": lead(new, "1.33b/10b", "1.32b/10b"),
    }


def _throughput() -> dict[str, float]:
    def ratio(column: str, size: str, other: str) -> float:
        by_size = {row["size"]: number(row, column) for row in table("based", 1).rows if row[column]}
        return by_size[f"{size}/10b"] / by_size[f"{other}/10b"]

    return {
        "prefill_attention_1b": 100 * (ratio("prefill", "1.35b", "1.33b") - 1),
        "prefill_mamba_1b": 100 * (ratio("prefill", "1.35b", "1.32b") - 1),
        "generate_attention_1b": ratio("generate", "1.35b", "1.33b"),
        "generate_mamba_1b": 100 * ratio("generate", "1.35b", "1.32b"),
        "generate_attention_360m": 100 * (ratio("generate", "363m", "360m") - 1),
        "generate_mamba_360m": 100 * ratio("generate", "363m", "358m"),
    }


def _gaps() -> dict[str, float]:
    pairs = against_attention(table("zoology", 4))
    suite = [pair for pair in pairs if pair[0]["model"] in ("H3", "Hyena", "RWKV")]

    def least(scale: int) -> float:
        return min(_lead(*pair, "ppl") for pair in suite if pair[1]["parameters"] == scale)

    on_hits = {row["model"]: _lead(row, base, "ppl_ar") for row, base in suite if base["parameters"] == 360}
    small = table("zoology", 4).row(model="Attention", parameters=73)
    (liquid,), (large,) = (against_attention(table("zoology", index)) for index in (3, 6))
    return {
        "ar_hits": median(map(hit_share, table("zoology", 4).rows)),
        "gap_share_mean": fmean(number(row, "gap") for row, _ in suite),
        "gap_70m": least(73),
        "gap_160m": least(125),
        "gap_360m": least(360),
        "attention_70m_hyena_1b": _lead(large[0], small, "ppl_ar"),
        "ar_hyena_360m": on_hits["Hyena"],
        "ar_rwkv_360m": on_hits["RWKV"],
        "liquid_s4": _lead(*liquid, "ppl"),
    }


def _selection() -> dict[str, float]:
    """Return how much of BaseConv's gap to attention its input-dependent variants close."""
    found = against_attention(table("zoology", 2))
    pairs = {(row["model"], base["parameters"]): (row, base) for row, base in found}

    def closed(selection: str, scale: int, column: str) -> float:
        before = _lead(*pairs["BaseConv", scale], column)
        return 100 * (1 - _lead(*pairs[f"BaseConv + {selection} selection", scale], column) / before)

    full, attention = pairs["BaseConv + full attention", 360]
    return {
        "programmatic_160m": closed("programmatic", 125, "ppl"),
        "programmatic_ar_360m": closed("programmatic", 360, "loss_ar"),
        "learned_ar_360m": closed("learned", 360, "loss_ar"),
        "full_ppl_360m": _lead(attention, full, "ppl"),
        "full_tflops_360m": 100 * (1 - number(full, "tflops") / number(attention, "tflops")),
    }
