"""Study colliding agents: ``python -m papers.hyper_self_attention.interactions --scale cpu --out DIR``."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from based_jax import command, plot
from based_jax.directory_lock import sole_writer
from based_jax.experiments.results import Row
from based_jax.experiments.study import claim
from based_jax.files import write_lines
from based_jax.validate import expect
from papers.hyper_self_attention.interactions import colliding_agents as agents
from papers.hyper_self_attention.interactions import figure

PROG = "python -m papers.hyper_self_attention.interactions"


@dataclass(frozen=True)
class Flags:
    """Train linear self-attention on colliding agents, test it at other lengths, and draw its weights."""

    scale: Literal["smoke", "cpu", "paper"] = "smoke"
    """smoke: seconds; cpu: less than a minute; paper: the paper's N 360, R 5, L 20 and 100,000 sequences"""
    out: Path | None = None
    """directory of the study; default runs/interactions-SCALE"""
    seed: int = 0
    """seed of the data and of the initial weights"""

    def __post_init__(self) -> None:
        expect(self.seed >= 0, "seed", self.seed, "at least 0")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; results that the directory holds are not recomputed."""
    flags = command.parse(Flags, argv, prog=PROG)
    out = flags.out or Path("runs") / f"interactions-{flags.scale}"
    with sole_writer(out):
        return _run(flags, out)


def _run(flags: Flags, out: Path) -> int:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    setting = agents.SETTINGS[flags.scale]
    claim(out, {"study": "interactions", "scale": flags.scale, "seed": flags.seed, **asdict(setting)})
    (out / "runs").mkdir(exist_ok=True)
    try:
        rows = _rows(flags, setting, out, console)
    except KeyboardInterrupt:
        console.print(f"saved in {out}; the same command continues")
        return 130
    results = out / "results.jsonl"
    write_lines(results, rows)
    print(results)
    if (reason := plot.missing()) is None:
        weights = [agents.load_weights(_kept(out, run)) for run in agents.RUNS]
        figure.draw(setting, agents.RUNS, weights, rows, out / "figure.png")
        print(out / "figure.png")
    else:
        console.print(reason)
    return 0


def _rows(flags: Flags, setting: agents.Setting, out: Path, console: Console) -> list[Row]:
    console.print(f"drawing {setting.sequences:,} sequences of {setting.length} agents")
    data = agents.training_data(setting, flags.seed)
    rows = []
    for run in agents.RUNS:
        weights, path = agents.train(run, setting, data, flags.seed, _kept(out, run), console.print)
        found = agents.examine(run, setting, weights, flags.seed)
        rows.append(agents.record(run, setting, path, found))
        worst = max(found["test_mse"].values())
        console.print(f"{run.title}: test MSE at most {worst:.2e} at lengths {agents.LENGTHS}")
    return rows


def _kept(out: Path, run: agents.Run) -> Path:
    return out / "runs" / f"{run.name}.npz"


if __name__ == "__main__":
    command.run(PROG, lambda: main(sys.argv[1:]))
