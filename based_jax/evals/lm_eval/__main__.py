"""Run tasks of lm-eval: ``based-jax eval lm-eval --checkpoint DIR --tasks hellaswag``."""

import contextlib
import dataclasses
import difflib
import functools
import io
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import Any, Literal, NamedTuple, cast

from rich.table import Table

from based_jax import command
from based_jax.convert.pretrained import find_directory
from based_jax.data.chat.template import Chat, ChatTemplate
from based_jax.evals.options import CheckpointOptions, as_text, digest, print_table, progress, write_json
from based_jax.files import naming, parse_json, read_json
from based_jax.published import table as published_table
from based_jax.validate import expect, expect_outputs, expect_ranges

PROG = "based-jax eval lm-eval"

BOOTSTRAP = 1000
"""Number of resamples for the standard error of metrics that are not means, such as a perplexity."""

_QUIET = (
    "TQDM_DISABLE",
    "HF_HUB_DISABLE_PROGRESS_BARS",
    "HF_DATASETS_DISABLE_PROGRESS_BARS",
    "HF_HUB_DISABLE_TELEMETRY",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS",
    "DISABLE_MULTIPROC",  # lm-eval's bootstrap would fork a process that has JAX's threads
)


class Column(NamedTuple):
    """A metric of lm-eval and its column in the paper's table."""

    name: str
    task: str
    metric: str
    title: str


class Suite(NamedTuple):
    """A group of tasks that are averaged."""

    table: int
    """number of the table in the Based paper"""
    columns: tuple[Column, ...]

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return lm-eval's names of the tasks."""
        return tuple(dict.fromkeys(column.task for column in self.columns))


SUITES = {
    name: Suite(suite["table"], tuple(Column(**column) for column in suite["columns"]))
    for name, suite in read_json(Path(__file__).with_name("suites.json")).items()
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CheckpointOptions):
    """Evaluate a language model on tasks of lm-eval, or on the papers' groups of them."""

    tasks: str | None = None
    """comma-separated tasks, groups or tags of lm-eval, such as lambada_openai,hellaswag"""
    suite: Literal["common_sense", "superglue"] | None = None
    """instead of --tasks: the tasks of Table 2 or Table 3 of the Based paper, shown with its rows"""
    num_fewshot: int | None = None
    """examples in the prompt; default: each task's own, 0 for the suites; always 0 for common_sense"""
    apply_chat_template: bool = False
    """write prompts as conversations, by the checkpoint's chat template"""
    system_instruction: str | None = None
    """text before every prompt; with a chat template, the system's message"""
    gen_kwargs: str | None = None
    """settings that replace the tasks' own where they generate, such as temperature=0.7,max_gen_toks=64"""
    metadata: str | None = None
    """JSON object for tasks that make their data, such as RULER: '{"max_seq_lengths": [4096]}'. "tokenizer",
    a name or directory for transformers, defaults to the checkpoint's directory"""
    include: Path | None = None
    """directory with further tasks, as lm-eval's YAML files"""
    limit: int | None = None
    """use only this many examples of each task, for a quick look"""
    context: int | None = None
    """maximum tokens to read; longer texts are truncated on the left; default: the training context"""
    cache: Path | None = None
    """directory in which answers are saved, so that the same command resumes after an interruption"""
    samples: Path | None = None
    """write one line per example to this .jsonl file: document, requests, answers, metrics"""

    def __post_init__(self) -> None:
        one = (self.tasks is None) != (self.suite is None)
        expect(one, "tasks", self.tasks, "names of tasks, or --suite instead")
        expect(self.tasks is None or all(self.names), "tasks", self.tasks, "comma-separated names")
        expect_ranges(self, 0, "num_fewshot")
        fits = self.suite != "common_sense" or not self.num_fewshot
        expect(fits, "num_fewshot", self.num_fewshot, "0 for common_sense, as in the paper")
        given = {} if self.metadata is None else parse_json(self.metadata, "metadata")
        expect(isinstance(given, dict), "metadata", self.metadata, "a JSON object")
        folder = self.include is None or self.include.is_dir()
        expect(folder, "include", str(self.include), "a folder with YAML files")
        expect_ranges(self, 1, "limit", "batch_size", "context")
        expect_outputs(self, "json", "samples")

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the tasks to run."""
        if self.suite is not None:
            return SUITES[self.suite].tasks
        return tuple(name.strip() for name in (self.tasks or "").split(","))

    @property
    def asked_shots(self) -> int | None:
        """Return the number of examples in the prompt; None for each task's default."""
        return 0 if self.suite is not None and self.num_fewshot is None else self.num_fewshot


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    options = command.parse(Options, argv, prog=PROG)
    with quiet():
        results = evaluate(options)
    show(options, results)
    if options.samples is not None:
        samples = ({"task": task, **row} for task, rows in results["samples"].items() for row in rows)
        options.samples.parent.mkdir(parents=True, exist_ok=True)
        with naming(options.samples), options.samples.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in samples)
    write_json(options.json, summarize(options, results))


def evaluate(options: Options) -> Mapping[str, Any]:
    """Run the tasks and return lm-eval's results."""
    # Imported here: lm-eval is optional and slow to import. The first import reports if it is missing.
    from based_jax.evals.lm_eval.model import LMEvalModel

    import lm_eval.evaluator as evaluator  # isort: skip
    from lm_eval.tasks import TaskManager  # isort: skip

    evaluator.get_git_commit_hash = str  # it would call git, which prints errors outside a repository
    metadata = {"tokenizer": str(find_directory(options.checkpoint)), **json.loads(options.metadata or "{}")}
    manager = TaskManager(include_path=options.include, metadata=metadata)
    for name in options.names:
        close = difflib.get_close_matches(name, manager.all_tasks) or ["one that lm-eval or --include has"]
        expect(name in manager.all_tasks, "tasks", name, ", ".join(close))
    model, params, tokenizer, directory = opened = options.open()
    sizes: dict[str, Any] = {"max_length": options.context, "batch_size": options.batch_size}
    if options.apply_chat_template:
        template = ChatTemplate.read(directory)
        expect(template is not None, "apply_chat_template", True, f"a chat template in {directory}")
        sizes["chat"] = Chat(cast(ChatTemplate, template), tokenizer)
    show_progress = functools.partial(progress, unit="requests")
    adapter = LMEvalModel(model, params, tokenizer, progress=show_progress, **sizes)
    cache = None
    if options.cache is not None:
        cache = str(options.cache / digest(opened, context=adapter.max_length))  # a file for each model
    try:
        return evaluator.simple_evaluate(
            adapter,
            tasks=list(options.names),
            num_fewshot=options.asked_shots,
            limit=options.limit,
            bootstrap_iters=BOOTSTRAP,
            log_samples=options.samples is not None,
            task_manager=manager,
            use_cache=cache,
            apply_chat_template=options.apply_chat_template,
            system_instruction=options.system_instruction,
            gen_kwargs=options.gen_kwargs,
        )
    except KeyboardInterrupt:
        kept = "nothing is kept without --cache"
        if options.cache is not None:
            kept = f"{options.cache} has the answers so far; run the same command to resume"
        command.fail(PROG, f"interrupted; {kept}", status=130)
    except Exception as error:  # tasks are third-party code and data and can raise anything
        if adapter.asked:
            raise
        reason = (str(error) or "no reason given").partition("\n")[0]
        raise ValueError(
            f"tasks = {','.join(options.names)!r}: expected tasks whose data can be loaded and whose prompts "
            f"can be made; {type(error).__name__}: {reason}"
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Make lm-eval and its dependencies log only errors, send no telemetry, and start no processes.

    They read these environment variables when they are first imported.
    """
    for name in _QUIET:
        os.environ.setdefault(name, "1")
    for name in ("lm_eval", "datasets", "huggingface_hub", "evaluate"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def show(options: Options, results: Mapping[str, Any]) -> None:
    """Print lm-eval's table, or the suite's."""
    if options.suite is None:
        from lm_eval.utils import make_table

        print(make_table(results))
    else:
        suite = SUITES[options.suite]
        print_table(suite_table(suite, results, options.checkpoint, options.asked_shots or 0))
    if options.limit is not None:
        print(f"the first {options.limit:,} examples of each task only")


def summarize(options: Options, results: Mapping[str, Any]) -> dict[str, Any]:
    """Return all results except the examples as plain data; for a suite also its row of the paper's table."""
    content: dict[str, Any] = {"options": as_text(options), "lm_eval": version("lm-eval")}
    for name in ("results", "groups", "versions", "n-shot", "n-samples"):
        content[name] = results.get(name, {})
    if options.suite is not None:
        suite = SUITES[options.suite]
        content["columns"] = read_columns(suite, results["results"])
        content["published"] = suite_rows(suite, options.asked_shots or 0)
    return content


def read_columns(suite: Suite, results: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Compute a row of the paper's table from lm-eval's results by task: percent, except perplexities."""
    row = {}
    for column in suite.columns:
        value = float(results[column.task][f"{column.metric},none"])
        row[column.name] = value if column.metric == "perplexity" else 100 * value
    return {**row, "average": average(suite, row)}


def average(suite: Suite, row: Mapping[str, float]) -> float:
    """Return the mean over tasks of each task's mean percentage."""
    percentages = (column for column in suite.columns if column.metric != "perplexity")
    tasks = groupby(percentages, lambda column: column.task)  # a task's columns are adjacent
    return mean(mean(row[column.name] for column in columns) for _, columns in tasks)


def suite_rows(suite: Suite, shots: int) -> list[dict[str, Any]]:
    """Return the paper's rows; for SuperGLUE those with the same number of examples in the prompt."""
    rows = published_table("based", suite.table).rows
    return [dict(row) for row in rows if row.get("shots", shots) == shots]


def suite_table(suite: Suite, results: Mapping[str, Any], name: str, shots: int) -> Table:
    """Tabulate our row, with standard errors, then the paper's."""
    paper = published_table("based", suite.table)
    names = [*(column.name for column in suite.columns), "average"]
    leading = [column for column in paper.columns if column not in names]
    table = Table(*leading, title=f"{paper.title}; percent, ours above {paper.source}", title_justify="left")
    for title in (*(column.title for column in suite.columns), "average"):
        table.add_column(title, justify="right")
    errors = {}
    for column in suite.columns:
        error = results["results"][column.task].get(f"{column.metric}_stderr,none")
        if isinstance(error, float):
            errors[column.name] = f" ± {error if column.metric == 'perplexity' else 100 * error:.2f}"
    ours = {"model": name, "shots": shots, **read_columns(suite, results["results"])}
    for row, suffixes in ((ours, errors), *((row, {}) for row in suite_rows(suite, shots))):
        numbers = [f"{row[column]:.2f}{suffixes.get(column, '')}" for column in names]
        cells = [str(row.get(column, "")) for column in leading]
        table.add_row(*cells, *numbers, end_section=row is ours)
    return table


if __name__ == "__main__":
    command.run(PROG, main)
