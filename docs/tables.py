"""The generated pages: `python docs/tables.py` writes mixers.md and presets.md, `--check` compares them."""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import based_jax as bj
from based_jax.mixers.contract import Card
from based_jax.models.printed import PRINTED

HERE = Path(__file__).parent
LENGTH = 1024
"""tokens of the longest test in the papers' synthetic studies, at which they count states"""

_SHORT = ("base_conv", {"kernel_size": 3})
STUDIES: list[tuple[str, list[tuple[str, dict[str, object]]], int, int | str]] = [
    ("convolution and attention", [_SHORT, ("attention", {"num_heads": 1})], 64, 525_056),
    *(
        (
            f"Based, d' = {feature}",
            [_SHORT, ("linear_attention", {"num_heads": 1, "feature_dim": feature})],
            width,
            size,
        )
        for width, feature, size in (
            (48, 8, 9_396), (64, 8, 12_468), (128, 8, 24_756), (48, 16, 30_564), (64, 16, 40_548),
            (48, 24, 64_276), (128, 16, 80_484), (64, 24, 85_268), (128, 24, 169_236),
        )
    ),
    *(
        (
            f"linear attention, {name}",
            [_SHORT, ("linear_attention", {"num_heads": 1, "feature_dim": 64, "feature_map": name})],
            64,
            size,
        )
        for name, size in (("pos_elu", 17_408), ("performer", 17_408), ("cosformer", 34_048))
    ),
    ("BigBird, blocks of 4", [_SHORT, ("bigbird", {"block_size": 4})], 64, 15_104),
    ("NystromFormer, 16 landmarks", [_SHORT, ("nystrom", {"num_landmarks": 16})], 128, 17_920),
    ("sliding window of 16", [_SHORT, ("sliding_window", {"num_heads": 1, "left": 15})], 128, 17_920),
    ("Mamba, 16 states", [("mamba", {"d_state": 16})] * 2, 64, "16k"),
    ("Mamba-2, 16 states", [("mamba2", {"d_state": 16})] * 2, 64, "16k"),
    ("Hyena", [("hyena", {})] * 2, 64, 524_288),
    ("H3, d / 4 states", [("h3", {"d_state": 16, "head_dim": 2})] * 2, 64, 8_192),
    ("GLA, 2 heads", [_SHORT, ("gla", {"num_heads": 2})], 64, "4.9k"),
    ("RWKV-7", [_SHORT, ("rwkv7", {"head_dim": 64})], 64, "17k"),
    ("DeltaNet", [_SHORT, ("delta_net", {})], 64, "9k"),
    ("Gated DeltaNet", [_SHORT, ("gated_delta_net", {})], 64, "17k"),
]  # fmt: skip
"""Name, layers, d_model, and the bytes of state that Zoology's code counts, or that one reads off its figure
(spec 5.2)."""


def mixers_page() -> str:
    """All mixers, from the registry."""
    head = [
        "mixer",
        "equation",
        "training",
        "state, floats",
        "decoding",
        "causal",
        "packing",
        "parity",
        "source",
    ]
    rows = []
    for name in bj.mixers.names():
        info, card = bj.mixers.info(name), bj.mixers.info(name).card
        answers = ["yes" if answer else "no" for answer in (info.causal, info.packing)]
        parity = ", ".join(f"`{case}`" for case in card.parity) or "float64 loops in the tests"
        math = [f"`{text}`" for text in (card.equation, card.training, card.state, card.decoding)]
        rows.append([f"`{name}`", *math, *answers, parity, card.source])
    sizes = [
        [name, str(width), f"{ours:,}", size if isinstance(size, str) else f"{size:,}"]
        for name, width, ours, size in state_bytes()
    ]
    return _page(
        "Mixers",
        "Every mixer can be a layer of every model: `bj.mixers.make(NAME, d_model=...)`, or a letter of a "
        "config's schedule. They share one contract ([guide](guide.md)): training, prefill and decoding are "
        "the same call, and packed documents and right padding are honoured by all of them. The forms of "
        "NystromFormer, ScatterBrain and the selections that are not causal (`causal=False`, `hard=True`: "
        "the authors') take whole rows, and say so.",
        _paragraph(Card.__doc__),
        _table(head, rows),
        "## State of the papers' synthetic models",
        f"Bytes per sequence at {LENGTH:,} tokens, 4 per float, over both layers, as `state_size` counts "
        "them by the papers' formulas, beside what the authors' code counts (or their figure shows). "
        "Where the layers are not the same mixer twice, the first is a BaseConv of 3 taps. What a state "
        "really allocates is in [benchmarks](benchmarks.md).",
        _table(["model", "d_model", "ours", "theirs"], sizes, right=(1, 2, 3)),
    )


def state_bytes() -> list[tuple[str, int, int, int | str]]:
    """Name, d_model, our bytes and theirs, of `STUDIES`."""
    rows = []
    for name, layers, width, theirs in STUDIES:
        floats = sum(bj.mixers.info(mixer).state_size(width, LENGTH, **options) for mixer, options in layers)
        rows.append((name, width, 4 * floats, theirs))
    return rows


def presets_page() -> str:
    """All presets, with the papers' numbers."""
    rows = []
    for name in bj.presets.names():
        config, count = bj.presets.get(name), bj.param_count(bj.presets.get(name))
        letters = sorted(set(config.schedule), key=config.schedule.index)
        parts = [f"{config.schedule.count(letter)} {config.mixers[letter].mixer}" for letter in letters]
        cells = [f"`{name}`", " + ".join(parts), str(config.d_model), f"{count:,}"]
        if name in PRINTED:
            printed = PRINTED[name]
            off = count / (printed.millions * 1e6) - 1
            cells += [f"{printed.millions:,.6g} M", f"{off:+.1%}", printed.source, printed.remark]
        else:
            cells += ["", "", "ours", "bytes, for a laptop's CPU"]
        rows.append(cells)
    head = ["preset", "layers", "d_model", "parameters", "printed", "difference", "source", "why"]
    return _page(
        "Presets",
        "`bj.presets.get(NAME)`. Counts are of `bj.param_count`, a tied embedding counted once; printed ones "
        "are the papers', or the released checkpoint's where there is one.",
        _table(head, rows, right=(2, 3, 4, 5)),
    )


PAGES: dict[str, Callable[[], str]] = {"mixers.md": mixers_page, "presets.md": presets_page}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages; with `--check`, return 1 if one on disk is not what would be written."""
    parser = argparse.ArgumentParser(description="Write the generated pages of the documentation.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args(argv).check
    stale = [name for name, page in PAGES.items() if not check or _read(HERE / name) != page()]
    for name in stale:
        if check:
            print(f"docs/{name} is not up to date: run python docs/tables.py", file=sys.stderr)
        else:
            (HERE / name).write_text(PAGES[name](), encoding="utf-8")
    return int(check and bool(stale))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", "Written by `python docs/tables.py`.", *parts]) + "\n"


def _paragraph(doc: str | None) -> str:
    """A docstring behind its first sentence, as one paragraph."""
    return " ".join((doc or "").split()).partition(". ")[2]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    rule = ["---:" if column in right else "---" for column in range(len(head))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *rows])


if __name__ == "__main__":
    sys.exit(main())
