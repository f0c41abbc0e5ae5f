"""Linearize attention: ``based-jax train linearize --from DIR --to taylor --window 64 --workdir runs/a``.

Replaces a pretrained Transformer's attention by `linearized_attention`, whose state does not grow with the
text, and trains its new maps to give the outputs of the original (`based_jax.training.linearization`). The
run directory is laid out as by `train lm`. ``based-jax train lm --init-from runs/a --lora 8`` then fine-tunes
the model on text.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Annotated, Any

import grain
import jax
import tyro
from rich.console import Console

from based_jax import data
from based_jax.convert.model_card import ModelCard
from based_jax.convert.pretrained import find_directory, find_tokenizer, load_pretrained
from based_jax.data.documents import REPORT, write_report
from based_jax.data.packed import TokenStream
from based_jax.mixers.linearized_attention import positive_maps
from based_jax.models import LanguageModel, ModelConfig
from based_jax.phases import phase
from based_jax.training.banner import describe_end, describe_run, run_card, show
from based_jax.training.commands.lm import (
    expect_divisible,
    find_mesh,
    fingerprint,
    held_out_metrics,
    own_rows,
    save_model,
    with_schedule,
)
from based_jax.training.devices import hosts
from based_jax.training.devices.host_memory import keep_freed_memory
from based_jax.training.initial_weights import start_from
from based_jax.training.linearization import (
    is_map,
    linearized,
    losses_in_full,
    new_layers,
    train_maps,
    transfer_losses,
)
from based_jax.training.lm_config import find_dtype
from based_jax.training.lm_data import RunData, open_data
from based_jax.training.loop import LoopConfig, Outcome, fit, mean_loss
from based_jax.training.named_options import parse_layers
from based_jax.training.optimizer import OptimizerConfig, learning_rate_schedule, make_optimizer
from based_jax.training.run.checkpoints import start_logging
from based_jax.training.run.directory import parse_run, prepare_run, sole_run
from based_jax.training.run.progress import short
from based_jax.training.step import Programs, TrainState, build_programs, next_token_losses
from based_jax.training.text_run import MAY_CHANGE, TextRunConfig
from based_jax.validate import expect, expect_choice, expect_ranges

PROG = "based-jax train linearize"

LENGTH = 1024
"""Tokens of a sequence by default; fewer if the model's context is shorter."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearizeConfig(TextRunConfig):
    """Replace a pretrained model's attention by a window and features of older tokens."""

    init_from: Annotated[str, tyro.conf.arg(aliases=["--from"])]
    """the pretrained model: a directory, a finished run, or a hub id"""
    to: str = "exp_half"
    """feature map of older tokens: exp_half (exponentials), softmax_dim (Hedgehog's), taylor, ...; others are
    in based_jax.feature_maps.names()"""
    window: int = 64
    """tokens that a query attends to exactly, its own included"""
    feature_dim: int | None = None
    """channels that queries and keys are mapped to; default: twice those of a head for exp_half, 16 for
    taylor, and else those of a head"""
    layers: str | None = None
    """layers to linearize, counted from 0, e.g. 0,3; default: all with full attention"""
    length: int | None = None
    """tokens per sequence; default: the model's context, at most 1024"""
    optimizer: Annotated[OptimizerConfig, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=lambda: OptimizerConfig(learning_rate=3e-2, weight_decay=0.0)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_ranges(self, 1, "window", "feature_dim")
        expect_choice("to", self.to, positive_maps())
        parse_layers("layers", self.layers)
        own = self.optimizer
        expect(own.optimizer == "adamw", "optimizer", own.optimizer, "adamw: the maps are no matrices")
        expect(own.weight_decay == 0, "weight_decay", own.weight_decay, "0: the maps have no weight decay")


def linearized_config(config: LinearizeConfig, pretrained: ModelConfig) -> ModelConfig:
    """Return the linearized model's config, as the run computes it."""
    length = config.length or min(pretrained.max_length, LENGTH)
    most = pretrained.max_positions or length
    expect(length <= most, "length", length, f"at most {most}, the model's positions")
    expect(config.window < length, "window", config.window, f"below length = {length}, or no token is older")
    plain = {"remat": "none", "scan_layers": False}  # no gradient passes from layer to layer
    original = pretrained.replace(max_length=length, dtype=find_dtype(config.dtype), **plain)
    layers = parse_layers("layers", config.layers)
    options = {"left": config.window - 1, "feature_map": config.to, "feature_dim": config.feature_dim}
    return linearized(original, layers, **options)


@dataclasses.dataclass(frozen=True)
class Parts:
    """Everything that a run needs before it compiles: data, models and programs."""

    model: LanguageModel
    programs: Programs  # that train the maps
    of_text: Programs  # whose loss is that of text
    in_full: Programs  # whose loss is that of text by the original model
    tokenizer: data.Tokenizer
    data: RunData
    rows: dict[str, Any]  # settings of the iterators over the data
    batches: grain.DatasetIterator[Any]
    summary: dict[str, str]  # human-readable description of data and run

    def held_out(self, programs: Programs, state: TrainState) -> dict[str, float]:
        """Return the mean loss of these programs on held-out text, and what follows from it."""

        def measure(stream: TokenStream) -> tuple[float, float]:
            return mean_loss(programs, state, data.held_out_batches(stream, **self.rows))

        return held_out_metrics(self.data.held_out, measure)


def assemble(config: LinearizeConfig) -> Parts:
    """Load the data and build the models without compiling or writing."""
    mesh = find_mesh(config)
    directory = find_directory(config.init_from)
    original = load_pretrained(directory)[0].config
    model = LanguageModel(linearized_config(config, original))
    layers = new_layers(model.config, original)
    vocabulary = model.config.vocab_size, model.config.padded_vocab_size
    tokenizer = find_tokenizer(directory, config.tokenizer, *vocabulary)
    expect_divisible(config, model.config.max_length, mesh)
    with phase("reading the data"):
        found = open_data(config, tokenizer)
    optimizer = train_maps(make_optimizer(config.optimizer, config.steps), layers)
    schedule = learning_rate_schedule(config.optimizer, config.steps)

    options: dict[str, Any] = {"accumulate": config.accumulate, "seed": config.seed, "mesh": mesh}
    training, of_text, in_full = (
        build_programs(model, optimizer, schedule, losses_of=losses, **options)
        for losses in (
            functools.partial(transfer_losses, layers=layers),
            next_token_losses,
            functools.partial(losses_in_full, layers=layers),
        )
    )
    programs, taken = start_from(training, directory, mesh)
    sizes = None if mesh is None else dict(mesh.shape)
    weights, name = f"{len(taken.names)} arrays of {config.init_from}", f"as {config.init_from}, linearized"
    described = describe_run(config, name, model.config, found.training, found.held_out, sizes, weights)
    rows = own_rows(config, programs, model.config.max_length)
    batches = data.train_iterator(found.training, seed=config.seed, **rows)
    summary = found.summary | described | _trained(programs, layers)
    return Parts(model, programs, of_text, in_full, tokenizer, found, rows, batches, summary)


def train(config: LinearizeConfig) -> Outcome:
    """Run `config` to its end, or until a signal; metrics of the last step also have those in full."""
    loop = LoopConfig(config.steps, config.log_every, config.eval_every, config.checkpoint_every, config.keep)
    hosts.join(config.hosts)
    with sole_run(config.workdir, config.resume):
        return _train(with_schedule(config), loop)


def _train(config: LinearizeConfig, loop: LoopConfig) -> Outcome:
    parts = assemble(config)
    if hosts.is_main():
        show(parts.summary, Console(stderr=True))
    facts = fingerprint(parts.data.training, parts.data.held_out)
    prepare_run(config, model=parts.model.config.to_dict(), data=facts, may_change=MAY_CHANGE)
    if parts.data.files and hosts.is_main():
        write_report(config.workdir / REPORT, parts.data.files)

    def describe(values: dict[str, float], tokens: int) -> dict[str, float]:
        names = "loss", "grad_norm", "learning_rate", "tokens_per_second"
        return {name: values[name] for name in names}

    def evaluate(state: TrainState) -> dict[str, float]:
        error = parts.held_out(parts.programs, state)["eval_loss"]
        found = {"eval_loss": error, **_of_text(parts.held_out(parts.of_text, state))}
        if int(state.step) == config.steps:
            in_full = _of_text(parts.held_out(parts.in_full, state))
            found |= {f"{name}_in_full": value for name, value in in_full.items()}
        return found

    key = jax.random.key(config.seed)
    how: dict[str, Any] = {"describe": describe, "evaluate": evaluate}
    outcome = fit(parts.programs, key, parts.batches, config.workdir, loop, **how)
    if outcome.stopped_by is None and config.eval_every and not outcome.held_out:
        outcome = dataclasses.replace(outcome, held_out=evaluate(outcome.state))  # it had already finished
    save_model(
        config.workdir, parts.model, outcome.state.params, parts.tokenizer, _card(config, parts, outcome)
    )
    return outcome


def _card(config: LinearizeConfig, parts: Parts, outcome: Outcome) -> ModelCard:
    found = outcome.held_out.items()
    measured = {name.replace("loss", "error_of_attention"): value for name, value in found}
    facts = {"linearized to": f"{config.to}, window {config.window}"}
    run = config, parts.model.config, outcome.step, measured, facts, config.init_from
    return run_card(*run, decays=False)


def _of_text(metrics: dict[str, float]) -> dict[str, float]:
    names = "eval_perplexity", "eval_bits_per_byte"
    return {name: metrics[name] for name in names if name in metrics}


def _trained(programs: Programs, layers: frozenset[str]) -> dict[str, str]:
    """Describe what is trained, with numbers of parameters."""
    leaves = jax.tree_util.tree_leaves_with_path(programs.abstract_state.params)
    maps = [leaf.size for path, leaf in leaves if is_map(path, layers)]
    whole = short(sum(leaf.size for _, leaf in leaves))
    return {"trains": f"{short(sum(maps))} of {whole} parameters: the maps of older tokens"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 128 + n after signal n."""
    start_logging()
    keep_freed_memory()
    config = parse_run(LinearizeConfig, argv, PROG)
    with hosts.together(PROG):
        outcome = train(config)
    if outcome.stopped_by is not None:
        return 128 + outcome.stopped_by
    if not hosts.is_main():
        return 0
    rows = {}
    if found := outcome.held_out:
        share = f"{found['eval_loss']:.2%} of the squared outputs of attention"
        before, after = found["eval_perplexity_in_full"], found["eval_perplexity"]
        rows["held out"] = f"error {share}; perplexity {after:.4f}, and {before:.4f} with attention in full"
    show(rows | describe_end(config, {}), Console())
    return 0
