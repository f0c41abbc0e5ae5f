"""Train a language model: ``based-jax train lm --preset based-tiny --data stdlib --workdir runs/a``.

The run directory holds config.json, metrics.jsonl, events/ (TensorBoard), checkpoints/ (Orbax) and, at the
end, model/ (safetensors and tokenizer, for `based_jax.generate` and `bj.load_pretrained`).
"""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import jax
from jax.sharding import Mesh
from rich.console import Console

from based_jax import data
from based_jax.convert.model_card import ModelCard
from based_jax.convert.pretrained import find_directory, find_tokenizer, load_pretrained, save_pretrained
from based_jax.data.documents import REPORT, FileReport, report_table, write_report
from based_jax.data.packed import Mixture, TokenStream
from based_jax.data.tokenizers import save_chat_files
from based_jax.files import read_toml
from based_jax.models import LanguageModel, ModelConfig
from based_jax.models.sharding import BATCH_AXES
from based_jax.phases import phase
from based_jax.profile import model_flops
from based_jax.training.banner import describe_end, describe_run, describe_trained, lm_card, show
from based_jax.training.devices import hosts
from based_jax.training.devices.host_memory import keep_freed_memory
from based_jax.training.devices.meshes import dry_run, parse_mesh, use_virtual_devices
from based_jax.training.initial_weights import start_from
from based_jax.training.lm_config import DEFAULT_PRESET, LMConfig, model_config
from based_jax.training.lm_data import data_tokenizer, open_data, plan_data, planned_vocab_size
from based_jax.training.loop import LoopConfig, Outcome, fit, mean_loss
from based_jax.training.low_rank import LowRank
from based_jax.training.optimizer import learning_rate_schedule, make_optimizer
from based_jax.training.recipes import with_recipe
from based_jax.training.run.checkpoints import naming_the_last_checkpoint, start_logging
from based_jax.training.run.directory import has_checkpoints, parse_run, prepare_run, read_config, sole_run
from based_jax.training.step import Programs, TrainState, build_programs
from based_jax.training.text_run import MAY_CHANGE, TextRunConfig
from based_jax.typing import Params
from based_jax.validate import expect

PROG = "based-jax train lm"

Config = TypeVar("Config", bound=TextRunConfig)


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished or interrupted run."""

    model: LanguageModel
    tokenizer: data.Tokenizer
    held_out: TokenStream | Mixture
    outcome: Outcome
    metrics: dict[str, float]  # held-out metrics of the final state; empty without evaluation


@dataclasses.dataclass(frozen=True)
class Parts:
    """Everything that a run needs before it compiles: data, model and optimizer."""

    model: LanguageModel
    programs: Programs
    tokenizer: data.Tokenizer
    training: TokenStream | Mixture
    held_out: TokenStream | Mixture
    batches: data.TrainIterator  # this process's rows
    summary: dict[str, str]  # human-readable description of data and run
    files: Sequence[FileReport]  # about the files that were read as text


def fingerprint(training: TokenStream | Mixture, held_out: TokenStream | Mixture) -> dict[str, int]:
    """Return checksums that identify the training and held-out text."""
    of_training = {"crc32": training.checksum, "tokens": len(training), "bytes": training.num_bytes}
    return {**of_training, "held_out_crc32": held_out.checksum, "held_out_bytes": held_out.num_bytes}


def assemble(config: LMConfig) -> Parts:
    """Load the data and build the model without compiling or writing; with several hosts, join them first."""
    mesh = find_mesh(config)
    tokenizer, architecture, directory = _architecture(config)
    with phase("reading the data"):
        training, held_out, summary, files = open_data(config, tokenizer)
    model = LanguageModel(architecture)
    programs, taken = make_programs(config, model, mesh), None
    if directory is not None:
        programs, taken = start_from(programs, directory, mesh)
        expected = f"a checkpoint with all of the model's arrays, but it has {taken.summary()}"
        expect(config.lora is None or not taken.fresh, "lora", config.lora, expected)
    share = own_rows(config, programs, architecture.max_length)
    batches = data.train_iterator(training, seed=config.seed, **share)
    sizes = None if mesh is None else dict(mesh.shape)
    weights = taken and f"{config.init_from}: {taken.summary()}"
    summary |= describe_run(config, _name(config), architecture, training, held_out, sizes, weights)
    summary |= describe_trained(_trained(config, model), programs)
    return Parts(model, programs, tokenizer, training, held_out, batches, summary, files)


def find_mesh(config: TextRunConfig) -> Mesh | None:
    """Return the run's mesh; that of several processes has all their devices by default."""
    return parse_mesh(config.mesh or (f"data={jax.device_count()}" if jax.process_count() > 1 else None))


def _architecture(config: LMConfig) -> tuple[data.Tokenizer, ModelConfig, Path | None]:
    """Return the run's tokenizer and model, and the checkpoint that it starts from, if any."""
    if config.init_from is None:
        tokenizer = data_tokenizer(config)
        return tokenizer, model_config(config, tokenizer.vocab_size), None
    directory = find_directory(config.init_from)
    pretrained = load_pretrained(directory)[0].config
    tokenizer = find_tokenizer(directory, config.tokenizer, pretrained.vocab_size)
    return tokenizer, model_config(config, tokenizer.vocab_size, pretrained), directory


def _name(config: LMConfig) -> str:
    name = config.preset or (config.init_from and f"as {config.init_from}") or DEFAULT_PRESET
    return f"{name} with {config.mixer}" if config.mixer else name


def with_schedule(config: Config) -> Config:
    """Fix the schedule's length to the steps of the first launch; a resumed run may not become shorter."""
    steps, path = config.steps, config.workdir / "config.json"
    if config.resume and has_checkpoints(config.workdir) and path.exists():
        saved = read_config(path)["train"]
        before, own = saved.get("steps"), saved.get("optimizer")
        is_whole = isinstance(before, int) and isinstance(own, dict)
        expect(is_whole, str(path), saved, "a run's settings, with steps and an optimizer")
        expect(steps >= before, "steps", steps, f"at least {before}, those of the run so far")
        steps = own.get("schedule_steps") or before
    optimizer = dataclasses.replace(config.optimizer, schedule_steps=config.optimizer.schedule_steps or steps)
    return dataclasses.replace(config, optimizer=optimizer)


def train(config: LMConfig) -> Run:
    """Run `config` to its end, or until a signal."""
    loop = LoopConfig(config.steps, config.log_every, config.eval_every, config.checkpoint_every, config.keep)
    hosts.join(config.hosts)
    with sole_run(config.workdir, config.resume):
        return _train(with_schedule(config), loop)


def _train(config: LMConfig, loop: LoopConfig) -> Run:
    parts = assemble(config)
    if hosts.is_main():
        show(parts.summary, Console(stderr=True))
    model, programs = parts.model, parts.programs
    prepare_run(
        config,
        model=model.config.to_dict(),
        data=fingerprint(parts.training, parts.held_out),
        may_change=MAY_CHANGE | {"recipe", "dry_run", "peak_tflops"},
    )
    if parts.files and hosts.is_main():
        write_report(config.workdir / REPORT, parts.files)
    per_byte = tokens_per_byte(parts.training)
    peak = config.peak_tflops or peak_tflops(jax.devices()[0].device_kind)
    flops = config.batch_size * model_flops(model.config, model.config.max_length)
    peak = peak and peak * len(programs.rows.device_set)

    def describe(values: dict[str, float], tokens: int) -> dict[str, float]:
        speed = values["tokens_per_second"]
        tflops = flops * speed / max(tokens, 1) / 1e12  # without recomputation
        return {
            **{name: values[name] for name in ("loss", "auxiliary_loss") if name in values},
            **({} if per_byte is None else {"bits_per_byte": values["loss"] / math.log(2) * per_byte}),
            "perplexity": math.exp(min(values["loss"], 700.0)),
            **{name: values[name] for name in ("grad_norm", "learning_rate")},
            "tokens_per_second": speed,
            "model_tflops_per_second": tflops,
            **({} if peak is None else {"mfu": tflops / peak}),
        }

    def evaluate(state: TrainState) -> dict[str, float]:
        share = own_rows(config, programs, model.config.max_length)

        def measure(stream: TokenStream) -> tuple[float, float]:
            return mean_loss(programs, state, data.held_out_batches(stream, **share))

        return held_out_metrics(parts.held_out, measure)

    key = jax.random.key(config.seed)
    outcome = fit(programs, key, parts.batches, config.workdir, loop, describe=describe, evaluate=evaluate)
    final = outcome.held_out
    if not final and outcome.stopped_by is None and config.eval_every:  # the run had already finished
        final = evaluate(outcome.state)
    variables = outcome.state.params
    trained = _trained(config, model)
    if isinstance(trained, LowRank):
        variables = jax.jit(trained.merged)(variables)
    card = lm_card(config, model.config, outcome.step, final)
    save_model(config.workdir, model, variables, parts.tokenizer, card)
    return Run(model, parts.tokenizer, parts.held_out, outcome, final)


def save_model(
    workdir: Path, model: LanguageModel, variables: Params, tokenizer: data.Tokenizer, card: ModelCard
) -> None:
    """Write a run's model/ for `bj.load_pretrained`; every process must call this."""
    params, export = hosts.on_main(variables["params"]), workdir / "model"
    if hosts.is_main():
        with naming_the_last_checkpoint(workdir, export):
            save_pretrained(export, model, {"params": params}, card=card)
            tokenizer.save(export)
            save_chat_files(tokenizer, export)


def tokens_per_byte(stream: TokenStream | Mixture) -> float | None:
    """Return the mean number of tokens per byte of text; None if the number of bytes is unknown."""
    if not isinstance(stream, Mixture):
        return len(stream) / stream.num_bytes if stream.num_bytes else None
    parts = list(zip(stream.shares, stream.parts, strict=True))
    if not all(part.num_bytes for _, part in parts):
        return None
    return 1 / sum(share * part.num_bytes / len(part) for share, part in parts)


def held_out_metrics(
    stream: TokenStream | Mixture, measure: Callable[[TokenStream], tuple[float, float]]
) -> dict[str, float]:
    """Compute loss, perplexity and bits per byte of held-out text, and the loss of each mixture source.

    `measure` returns the sum of a stream's losses (nats) and the number of its targets.
    """
    parts = [measure(part) for part in (stream.parts if isinstance(stream, Mixture) else (stream,))]
    nats, targets = (sum(values) for values in zip(*parts, strict=True))
    metrics = {"eval_loss": nats / targets, "eval_perplexity": math.exp(min(nats / targets, 700.0))}
    if tokens_per_byte(stream) is not None:
        metrics["eval_bits_per_byte"] = nats / math.log(2) / stream.num_bytes
    if isinstance(stream, Mixture):
        each = zip(stream.names, parts, strict=True)
        metrics |= {f"eval_loss/{name}": own / count for name, (own, count) in each}
    return metrics


def peak_tflops(device_kind: str) -> float | None:
    """Return the peak of a device of this kind; None if it is not in peak_tflops.toml."""
    peaks = read_toml(str(resources.files("based_jax") / "training/devices/peak_tflops.toml"))
    return next((peak for name, peak in peaks.items() if re.search(rf"\b{name}\b", device_kind)), None)


def make_programs(config: LMConfig, model: LanguageModel, mesh: Mesh | None) -> Programs:
    """Build the run's compiled programs; the mesh must divide the batch and the sequences."""
    expect_divisible(config, model.config.max_length, mesh)
    optimizer = make_optimizer(config.optimizer, config.steps)
    trained: Any = _trained(config, model)
    if config.lora is not None:
        optimizer = trained.train_only(optimizer)
    schedule = learning_rate_schedule(config.optimizer, config.steps)
    options: Any = {"accumulate": config.accumulate, "seed": config.seed, "mesh": mesh}
    return build_programs(trained, optimizer, schedule, **options)


def expect_divisible(config: TextRunConfig, length: int, mesh: Mesh | None) -> None:
    """Check that the mesh divides the batch's rows and their tokens."""
    if mesh is None:
        return
    rows, columns = (math.prod(mesh.shape.get(axis, 1) for axis in axes) for axes in BATCH_AXES)
    expected = f"a multiple of accumulate x data x fsdp = {config.accumulate * rows}"
    divides = config.batch_size // config.accumulate % rows == 0
    expect(divides, "batch_size", config.batch_size, expected)
    expect(length % columns == 0, "length", length, f"a multiple of the mesh's context = {columns}")


def _trained(config: LMConfig, model: LanguageModel) -> LanguageModel | LowRank:
    """Return what the training step calls: the model, or the model with low-rank updates."""
    return model if config.lora is None else LowRank(model, config.lora, config.also_trained)


def plan(config: LMConfig) -> int:
    """Print what would stop the run, and what it would need on each device of its mesh (`config.dry_run`).

    Returns the exit status: 2 if the run's data would stop it.
    """
    use_virtual_devices(config.mesh)
    tokenizer = None
    if config.init_from is None:
        architecture = model_config(config, planned_vocab_size(config))
    else:
        tokenizer, architecture, _ = _architecture(config)
    found = plan_data(config, architecture.max_length, tokenizer)
    if found.files:
        print(report_table(found.files))
    show(found.rows, Console(width=120))
    model = LanguageModel(architecture)
    programs = make_programs(config, model, parse_mesh(config.mesh))
    show(describe_trained(_trained(config, model), programs), Console(width=120))
    dry_run(programs, (config.batch_size, architecture.max_length), segments=not config.cross_documents)
    return 0 if found.can_run else 2


def own_rows(config: TextRunConfig, programs: Programs, length: int) -> dict[str, Any]:
    """Return the iterator settings that select this process's rows of each batch."""
    part, parts = hosts.share_of_rows(programs.rows)
    shard = {"shard_index": part, "shard_count": parts, "batch_size": config.batch_size // parts}
    return {"length": length, "cross_documents": config.cross_documents, **shard}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 128 + n after signal n."""
    start_logging()
    keep_freed_memory()
    config = parse_run(LMConfig, with_recipe(argv, LMConfig), PROG)
    if config.dry_run:
        return plan(config)
    with hosts.together(PROG):
        run = train(config)
    if run.outcome.stopped_by is not None:
        return 128 + run.outcome.stopped_by
    if hosts.is_main():
        show(describe_end(config, run.metrics), Console())
    return 0
