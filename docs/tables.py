"""The generated pages: `python docs/tables.py` writes them, with `--check` compares them."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax

import based_jax as bj
from based_jax.__main__ import console_commands
from based_jax.mixers.registry import class_of
from based_jax.ops.core.implementations import DECLARED
from benchmarks.__main__ import COMMANDS as BENCHMARKS
from papers.results.parameters import PRINTED

HERE = Path(__file__).parent

PARITY = {
    "attention": ("based/mha_rotary", "zoology/mha"),
    "base_conv": (
        "zoology/base_conv_short",
        "zoology/base_conv_implicit_long",
        "zoology/base_conv_explicit_long",
    ),
    "bigbird": ("zoology/bigbird",),
    "delta_net": ("zoology/delta_net", "ops/delta_rule"),
    "gated_conv": ("based/base_conv",),
    "gated_delta_net": ("zoology/gated_delta_net", "ops/gated_delta_rule"),
    "gla": ("zoology/gla", "ops/gla"),
    "h3": ("zoology/h3",),
    "hyena": ("zoology/hyena",),
    "linear_attention": ("based/linear_attention_taylor", "feature_maps"),
    "long_conv": ("zoology/long_conv",),
    "mamba": ("zoology/mamba", "checkpoints/mamba-tiny"),
    "mamba2": ("zoology/mamba2", "ops/ssd"),
    "nystrom": ("zoology/nystrom",),
    "retnet": ("ops/retention",),
    "rwkv4": ("zoology/rwkv4_time_mix",),
    "rwkv5": ("zoology/rwkv5_time_mix",),
    "rwkv7": ("zoology/rwkv7", "ops/dplr"),
    "rwkv_channel_mix": ("zoology/rwkv4_channel_mix",),
    "scatterbrain": ("zoology/scatterbrain",),
    "selective_lookups": (
        "zoology/selective_selectivelookups_train",
        "zoology/selective_selectivelookups_eval",
    ),
    "short_conv": ("based/short_convolution",),
    "sigmoid_lookups": ("zoology/selective_sigmoidlookups_train", "zoology/selective_sigmoidlookups_eval"),
    "sliding_window": ("based/sliding_attention", "zoology/sliding_attn"),
    "sma": ("zoology/selective_sma_train", "zoology/selective_sma_eval"),
}
"""Mixer -> its cases in tests/fixtures; those without any are compared with float64 loops."""


def _data(name: str) -> Any:
    """Return what a file beside this one has."""
    return json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def own_mixers() -> list[str]:
    """The library's mixers, without those of other installed packages."""
    return [name for name in bj.mixers.names() if class_of(name).__module__.startswith("based_jax.")]


def mixers_page() -> str:
    """All mixers of the library, from the registry."""
    head = [
        "mixer",
        "equation",
        "training",
        "state, floats",
        "counted, bytes",
        "held, bytes",
        "decoding",
        "parity",
        "source",
    ]
    rows, costs = [], _data("mixers.json")
    for name in own_mixers():
        parity = ", ".join(f"`{case}`" for case in PARITY.get(name, ())) or "float64 loops in the tests"
        row = costs.get(name, {})
        columns = ("equation", "training", "state", "decoding")
        equation, training, state, decoding = (f"`{row.get(column, '')}`" for column in columns)
        sizes = [f"{count:,}" for count in _state_bytes(name)]
        rows.append(
            [
                f"`{name}`",
                equation,
                training,
                state,
                *sizes,
                decoding,
                parity,
                row.get("source", ""),
            ]
        )
    return _page(
        "Mixers and presets",
        "This page lists every mixer with its equation, its costs and its source, and every "
        "[preset](#presets). Every mixer can be a layer "
        "of every model: a letter of a config's schedule names it ([guide](guide.md)). A mixer also works "
        "alone:",
        _block(
            "import jax",
            "import jax.numpy as jnp",
            "import based_jax as bj",
            "",
            'mixer = bj.mixers.make("gla", d_model=64)',
            "x = jnp.ones((2, 16, 64))  # (batch, length, d_model)",
            "variables = jax.jit(mixer.init)(jax.random.key(0), x)",
            "y, _ = mixer.apply(variables, x)",
            "assert y.shape == x.shape",
            'assert "num_heads" in bj.mixers.options("gla")  # name -> default and meaning',
        ),
        "All mixers share one contract ([one contract](concepts/contract.md)): training, prefill and "
        "decoding are the same call, and all of them are causal and support packed documents and padding. "
        "The authors' forms that are not causal (`causal=False`, `hard=True`, the autocorrelation of "
        "`input_conv`) are options, and have no state. Those of `nystrom` and `scatterbrain` take neither "
        "packed documents nor padding, that of `input_conv` no packed documents.",
        "Costs are per sequence and layer, without the projections' N D^2. Letters: N tokens, D d_model, "
        "H heads, d_h channels of a head (d_k of keys, d_v of values), E inner channels, S states per "
        "channel, F features, d' channels before Taylor's map, C tokens of a chunk, w window, k taps "
        "(segments in `conv_basis`, selected queries in `selected_attention`), b tokens of a block, "
        "m landmarks, t lags, p channels per H3 head.",
        "The bytes are those of one row of "
        f"{STATE_LENGTH:,} tokens in float32, with d_model = {STATE_WIDTH} and the other options at their "
        'defaults. "Counted" is four bytes for each float that `state_size` counts by the papers\' '
        'formulas. "Held" is what `init_state` allocates, with caches, positions and counters.',
        _table(head, rows, right=(4, 5)),
        "[Benchmarks](benchmarks.md#every-mixer) has times and states of other sizes. "
        "[Results](../papers/results/README.md#zoology-the-authors-repository) compares the papers' counts "
        "for their synthetic models with ours.",
        "## Initial values",
        "Projections start normal with a standard deviation of `init_std`, the output's of "
        "`out_init_std`; both are 0.02 by default. Zoology's models draw the same for every linear map "
        "outside Mamba's blocks, and overwrite what the mixers' classes have drawn. They scale only the "
        "mixers' maps called `out_proj` by 1 / sqrt(2 layers). Language models here scale every output map "
        "so, unless a mixer's options set `out_init_std`; the synthetic models of `mqar_backbone` set it as "
        "Zoology's code does. This table has the classes and trainers of the authors that initialise "
        "projections in another way:",
        _table(["mixer", "there", "here"], [[f"`{name}`", *cells] for name, *cells in INITS]),
        "## Mixers of Zoology's code that are not here",
        _table(["class", "reason"], [[f"`{name}`", reason] for name, reason in NOT_HERE.items()]),
        'Mega\'s moving averages, the `ema` kernel of its H3, are an option of `h3`: `kernel="ema"`.',
        *presets(),
    )


STATE_WIDTH, STATE_LENGTH = 128, 1024


def _state_bytes(name: str) -> tuple[int, int]:
    """What `state_size` counts, and what `init_state` holds."""
    mixer = bj.mixers.make(name, d_model=STATE_WIDTH)
    state = jax.eval_shape(lambda: mixer.init_state(1, STATE_LENGTH))
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    return 4 * mixer.state_size(STATE_LENGTH), held


INITS = (
    (
        "mamba",
        "torch's default, a variance of 1 / (3 fan_in), the output over sqrt(layers)",
        "`num_layers=L`; normal instead of uniform",
    ),
    ("mamba2", "as `mamba`", "as `mamba`"),
    (
        "retnet",
        "torchscale: Xavier with a gain of 2^-2.5, of 1 for the output; with DeepNet's scales v and the "
        "output over (8 layers)^(1/4)",
        "`init_std`",
    ),
    (
        "rwkv4",
        "RWKV's trainer (`init_rwkv`, which Zoology's models never call): zeros for key, receptance and "
        "output, an orthogonal value",
        "`init_std`",
    ),
    (
        "rwkv_channel_mix",
        "the same: zeros for receptance and value, an orthogonal key with a gain of 2",
        "`init_std`",
    ),
    (
        "rwkv5",
        "RWKV's trainer: a zero output, the others orthogonal, the norm's scale ((1 + layer) / layers)^0.7",
        "`init_std`",
    ),
    ("rwkv7", "Xavier with a gain of 2^-2.5, drawn again by Zoology's models", "`init_std`"),
)
"""Mixers whose authors initialise the projections otherwise, how, and the option for it."""

NOT_HERE = {
    "zoology.mixers.deepseek_nsa.SparseAttention": "NSA, native sparse attention: its sliding branch is "
    "built without a causal mask, so outputs depend on later tokens, and rows must be whole blocks. A causal "
    "one would be another mixer than the one that Zoology measured.",
    "zoology.mixers.ttt": "TTT, test-time training: the state is the weights of an inner model, updated once "
    "for each mini-batch of 16 or 32 tokens, so outputs depend on where mini-batches begin. Rows that are "
    "cut, packed or padded would not give the same numbers.",
    "zoology.mixers.mra": "MRA-2: not causal, only a CUDA kernel computes it, and the class fails in the "
    "repository.",
    "zoology.mixers.scatterbrain_new.ScatterBrain": "reads a name that nothing defines; `scatterbrain` "
    "is the class that works.",
}


def presets() -> list[str]:
    """Return the paragraphs about all presets, with the papers' numbers."""
    rows = []
    for name in bj.presets.names():
        config, count = bj.presets.get(name), bj.param_count(bj.presets.get(name))
        letters = sorted(set(config.schedule), key=config.schedule.index)
        parts = [f"{config.schedule.count(letter)} {config.mixers[letter].mixer}" for letter in letters]
        cells = [f"`{name}`", " + ".join(parts), str(config.d_model), f"{count:,}"]
        if name in PRINTED:
            printed = PRINTED[name]
            off = count / (printed.millions * 1e6) - 1
            cells += [f"{printed.millions:,.6g} M", f"{off:+.1%}", printed.source]
            cells += [printed.remark, printed.settings]
        else:
            cells += ["", "", "ours", "bytes, for a laptop's CPU", ""]
        rows.append(cells)
    head = ["preset", "layers", "d_model", "parameters", "printed", "difference", "source", "why", "settings"]
    return [
        "## Presets",
        "A preset is a named model configuration, most of them a model of the papers. This table compares "
        "their sizes with the printed ones.",
        _block(
            "import based_jax as bj",
            "",
            'config = bj.presets.get("based-360m")',
            "assert bj.param_count(config) == 362_620_928",
        ),
        '"Parameters" is `bj.param_count`, which counts a tied embedding once. "Printed" is the paper\'s '
        "count, or that of the released checkpoint if there is one. The last column has the printed "
        "hyperparameters that a preset does not have, with the reason; all others are as printed.",
        _table(head, rows, right=(2, 3, 4, 5)),
    ]


def transformations_page() -> str:
    """What runs under which transformation: all but what has a gradient of its own, in forward mode."""
    table = _data("transformations.json")
    reverse_only, forward_mode = table["reverse_only"], table["forward_mode"]
    of_ops = [
        f"{op} {how}"
        for op in sorted(DECLARED)
        for how in bj.ops.implementations(op)
        if how in ("pallas", "tiled", "xla", "reference")
    ]
    rows = {name: f"`{name.replace(' ', '` `')}`" for name in of_ops}
    rows |= {name: f"`{name}`" for name in reverse_only if name.isidentifier()}
    rows |= {f"mixers.{name}": f"mixer `{name}`" for name in own_mixers()}
    titles = table["transformations"]
    cells = [
        [shown, *("error" if name in reverse_only and what in forward_mode else "works" for what in titles)]
        for name, shown in rows.items()
    ]
    forward = [name for name in rows if name in reverse_only and name.startswith("mixers.")]
    plain = ", ".join(f"`{name.removeprefix('mixers.')}`" for name in forward)
    return _page(
        "Transformations",
        "This page lists which ops and mixers work under which of JAX's transformations and settings. "
        '"works" means that the numbers equal those without it. The tests check every cell on a CPU, at a '
        "few tokens, with `pallas` in its interpreter; they do not check `cudnn`, `mosaic` and `triton`. Ops "
        "and functions of `bj.ops` that are not listed work under all of them.",
        _block(
            "import jax",
            "import jax.numpy as jnp",
            "import based_jax as bj",
            "",
            "x = jnp.ones((1, 4, 1, 2))  # (batch, length, heads, channels)",
            'attend = lambda q: bj.ops.taylor_attention(q, x, x, implementation="reference")',
            "y, slope = jax.jvp(attend, (x,), (x,))  # forward mode",
            "assert slope.shape == y.shape",
        ),
        "The only error is that of forward mode, if an op defines its own gradient. Inside `jit` it is "
        f"JAX's: `TypeError: {table['error']}`. Outside `jit` the error names the op. Reverse mode works, "
        "and so do second derivatives through it, `jax.hessian` included, but for `taylor_attention`, "
        "`delta_rule`, `generalized_delta_rule`, `linear_attention`, `linear_recurrence` and windows of "
        "`softmax_attention` by their kernels: pass "
        '`implementation="xla"`, also for `jax.grad` of `jax.grad` through `tiled`. To use forward mode:',
        '- Pass `implementation="reference"` to an op that takes it, or to one of the mixers '
        f"{plain}.\n"
        '- Pass `implementation="xla"` for full softmax attention of 256 tokens or more on a CPU, which '
        "picks `tiled`, and to ops that pick a kernel on a GPU.\n"
        "- `cross_entropy` has no other form. Compute the logits and use `optax`'s.",
        "`jax_debug_nans` reports no NaN of a valid computation. Outputs that are NaN on purpose are "
        "computed as 0 / 0, so the first operation that it reports, with `jax_disable_jit` too, is the "
        "cause. For `jax.export`, the batch may be symbolic; the length must be a number.",
        _table(["", *titles.values()], cells),
    )


def commands_page() -> str:
    """Every command, from the docstrings of their modules."""
    found = console_commands(Path(bj.__file__).parent)
    rows = [[f"`based-jax {name}`", f"`{_runnable(module)}`", text] for name, (module, text) in found.items()]
    speed = [[f"`python -m benchmarks {name}`", purpose] for name, (_, purpose) in BENCHMARKS.items()]
    return _page(
        "Commands",
        "This page lists every command of the library. `--help` explains a command's flags, units and "
        "defaults:",
        "```\nbased-jax generate --help\n```",
        "An underscore in a name stands for a hyphen. `python -m` with the module in the table runs the same "
        "command; `python -m train.lm` and its neighbours need a checkout.",
        "A wrong flag, path or value ends the command with one line on stderr and exit status 2. Long "
        "commands show their progress. Training, tokenizing, studies and `eval long` save their work at "
        "Ctrl-C, and the same command continues, `train lm`, `linearize` and `classify` with `--resume`.",
        _table(["command", "module", "what it does"], rows),
        "## Benchmarks",
        "Benchmarks run in a checkout ([benchmarks](../benchmarks.md)).",
        _table(["command", "what it measures"], speed),
    )


def _runnable(module: str) -> str:
    module = module.removesuffix(".__main__").replace("based_jax.training.commands", "train")
    return module


PAGES: dict[str, Callable[[], str]] = {
    "mixers.md": mixers_page,
    "reference/commands.md": commands_page,
    "transformations.md": transformations_page,
}


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
    return "\n\n".join([f"# {title}", parts[0], "Written by `python docs/tables.py`.", *parts[1:]]) + "\n"


def _block(*lines: str) -> str:
    """Return lines of Python as a block of Markdown."""
    return "\n".join(["```python", *lines, "```"])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    rule = ["---:" if column in right else "---" for column in range(len(head))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *rows])


if __name__ == "__main__":
    sys.exit(main())
