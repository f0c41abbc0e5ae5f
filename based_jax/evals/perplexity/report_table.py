"""Format reports as lines of text for the terminal."""

from typing import Any

from based_jax.evals.perplexity.slices import NEAR


def report_lines(result: dict[str, Any]) -> list[str]:
    """Format the result of `slices.report`."""
    rows = [f"{'slice':<22}{'tokens':>14}{'share':>9}{'loss':>9}{'perplexity':>12}"]
    for title in ("", "reference"):
        source = result.get(title) if title else result
        for name, values in (source["slices"] if source else {}).items():
            label = f"{title} {name}".strip()
            rows.append(f"{label:<22}{_row(values)}")
    if "bits_per_byte" in result:
        rows.append(f"bits per byte {result['bits_per_byte']:.4f}")
    counts = result["info"].get("counts")
    rare = "any count"
    if counts:
        rare = f"at most {result['max_count']:,} times in training ({counts['source']})"
    rows.append(f"hits: bigrams that came before in the sequence, {rare}")
    if "gap_explained" in result:
        share = result["gap_explained"]
        said = "no gap: the model is not worse" if share is None else f"{share:.1%}"
        rows.append(f"gap to the reference explained by hits: {said}")
    if result["frequency"]:
        rows += ["", f"{'count in training':<22}{'tokens':>14}{'loss':>9}{'repeats':>14}{'loss':>9}"]
        for entry in result["frequency"]:
            slices = (entry["all"], entry["repeats"])
            cells = "".join(f"{slice_['tokens']:>14,}{_loss(slice_)}" for slice_ in slices)
            rows.append(f"{_span(entry):<22}{cells}")
    return [*rows, "", *distance_lines(result["distances"])]


def distance_lines(values: dict[str, Any]) -> list[str]:
    """Format the result of `slices.distances` as a table."""
    rows = [f"{'tokens since':<22}{'repeats':>14}{'hits':>14}"]
    for entry in values["bins"]:
        rows.append(f"{_span(entry):<22}{entry['repeats']:>14,}{entry['hits']:>14,}")
    near = values[f"hits_within_{NEAR}"]
    return [*rows, *([] if near is None else [f"hits less than {NEAR} tokens away: {near:.1%}"])]


def _row(values: dict[str, Any]) -> str:
    perplexity = "-" if values["perplexity"] is None else f"{values['perplexity']:,.4g}"
    return f"{values['tokens']:>14,}{values['share']:>9.2%}{_loss(values)}{perplexity:>12}"


def _loss(values: dict[str, Any]) -> str:
    return f"{'-':>9}" if values["loss"] is None else f"{values['loss']:>9.4f}"


def _span(entry: dict[str, Any]) -> str:
    return f"{entry['low']:,}" if entry["low"] == entry["high"] else f"{entry['low']:,} to {entry['high']:,}"
