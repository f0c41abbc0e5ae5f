"""The studies: grids that the trainer takes, the papers' state sizes, figures, pages, a run to the end."""

import dataclasses
import importlib
import json
import pkgutil
import re
import runpy

import numpy as np
import pytest

from based_jax import experiments, plot
from based_jax.command import parse
from based_jax.experiments import mqar_feature_maps, mqar_tradeoff, study
from based_jax.experiments.job import Job
from based_jax.models import LanguageModel
from based_jax.plot import Line
from based_jax.training.commands.synthetic import SyntheticConfig, state_bytes
from based_jax.training.recipes import with_recipe
from tests.marks import slow_but

NAMES = [
    module.name
    for module in pkgutil.iter_modules(experiments.__path__)
    if module.name.startswith("mqar") or module.name in ("tasks", "capabilities")
]
STUDIES = {name: importlib.import_module(f"based_jax.experiments.{name}").STUDY for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_every_study_is_a_program(name, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["study", "--dry-run"])
    with pytest.raises(SystemExit) as ended, pytest.warns(RuntimeWarning, match="found in sys.modules"):
        runpy.run_module(f"based_jax.experiments.{name}", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.count("based-jax train") == len(STUDIES[name].jobs["smoke"])


def config(job: Job) -> SyntheticConfig:
    return parse(SyntheticConfig, with_recipe(job.arguments, SyntheticConfig), prog="test")


def rows(jobs, seed=0):
    """Made-up results."""
    random = np.random.default_rng(seed)
    for job in jobs:
        accuracy = random.uniform()
        slices = {"num_pairs": dict.fromkeys(("8", "64", "256"), accuracy)}
        record = {"accuracy": accuracy, "slices": slices, "parameters": 1000, "status": "finished"}
        facts = {"job": job.name, "family": job.family, "setting": job.setting, **job.facts}
        rate = float(job.flags.get("learning_rates", "0.001").split(",")[0])
        record |= {"learning_rate": rate, "seed": 0, "epochs": 1.0, "seconds": 60.0}
        record |= {"d_model": job.flags.get("d_model", 128), "state_bytes": 51_234}
        yield {**facts, **record, "state_size": int(random.integers(1000, 9999))}


@pytest.mark.slow
@pytest.mark.parametrize("scale", study.SCALES)
@pytest.mark.parametrize("name", NAMES)
def test_the_trainer_takes_every_job(name, scale):
    jobs = STUDIES[name].jobs[scale]
    assert len({job.name for job in jobs}) == len(jobs)

    # Flags of one kind are checked once: parsing them takes longer than all else.
    def kind(job):
        return json.dumps([*job.flags, job.model.split(":")[0], job.flags.get("recipe")])

    parsed = {kind(job): config(job) for job in {kind(job): job for job in jobs}.values()}
    for job in jobs:
        chosen = job.arguments[0].removeprefix("--")
        model = {"layers": None, "mixer": None, chosen: job.model}
        settings = dataclasses.replace(parsed[kind(job)], **{**job.flags, **model})
        train, test = settings.segments
        assert all(task.num_examples >= 128 for task in [*train, *test])
        assert settings.architecture.d_model == job.flags.get("d_model", settings.d_model)
        if scale == "smoke" and settings.architecture.input_dim is None:
            held = state_bytes(settings.architecture, settings.longest)
            assert (held is None) == ("autocorrelation" in job.model)
        assert settings.runs


def test_the_published_states_are_those_of_the_models():
    ours: dict[str, set[int]] = {}
    published = mqar_tradeoff.published_points()
    for job in mqar_tradeoff.STUDY.jobs["paper"]:
        if job.family in published:
            settings = config(job)
            size = LanguageModel(settings.architecture).state_size(settings.longest)
            ours.setdefault(job.family, set()).add(4 * size)
    for family, points in published.items():
        assert {size for size, _ in points} <= ours[family], family


def test_the_figure_of_feature_maps_has_the_bytes_that_performer_holds():
    """The paper's count has the width 64 in place of the 256 features."""
    feature_maps = STUDIES["mqar_feature_maps"]
    jobs = [job for job in feature_maps.jobs["paper"] if job.family == "Performer" and "d 64," in job.setting]
    settings = config(jobs[0])
    counted = 4 * LanguageModel(settings.architecture).state_size(settings.longest)
    held = state_bytes(settings.architecture, settings.longest)
    assert counted == mqar_feature_maps.published_points()["Performer"][0][0] == 17_408
    features, convolution = 4 * 65 * 256, 4 * 3 * 64
    assert features < held < features + convolution
    row = {**next(rows(jobs)), "state_size": counted // 4, "state_bytes": held}
    (line,) = feature_maps.panels([row], "paper")[0].lines
    assert line.points[0][0] == held
    notes = " ".join(feature_maps.notes)
    assert f"{counted:,}" in notes
    assert f"{held:,}" in notes


def families_of(panel: plot.Panel | plot.Bars) -> set[str]:
    """The families whose points a panel draws."""
    if isinstance(panel, plot.Bars):
        return set(panel.values)
    return {line.family for line in panel.lines if line.points}


@pytest.mark.parametrize("name", slow_but(["capabilities", "mqar_width"], NAMES))
def test_figures_and_pages(name, tmp_path):
    chosen = STUDIES[name]
    made = [*rows(chosen.jobs["smoke"])]
    failed = {"job": "x<y", "family": "<b>", "status": "failed", "error": 'no "memory"', "exit_status": 1}
    made.append({**made[0], **failed})
    png, index = study.draw(chosen, "smoke", made, tmp_path)
    assert png.read_bytes().startswith(b"\x89PNG")
    text = index.read_text()
    assert "data:image/png;base64," in text
    assert "&lt;b&gt;" in text
    assert "<b>" not in text
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert text.count(">51,234<") == 2 * len(chosen.jobs["smoke"]) + 1
    assert text.count("<tr>") == 2 + 2 * len(chosen.jobs["smoke"]) + 1
    assert any(families_of(panel) for panel in chosen.panels(made, "smoke"))
    paper = [*rows(chosen.jobs["paper"])]
    families = {family for panel in chosen.panels(paper, "paper") for family in families_of(panel)}
    assert {job.family for job in chosen.jobs["paper"]} <= families


def test_a_page_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setattr(plot, "missing", lambda: "no figure: it needs matplotlib")
    (index,) = study.draw(mqar_tradeoff.STUDY, "smoke", [*rows(mqar_tradeoff.STUDY.jobs["smoke"])], tmp_path)
    assert "it needs matplotlib" in index.read_text()


def test_a_frontier_joins_what_beats_all_before_it():
    line = Line("x", [(4, 0.5), (1, 0.2), (2, 0.1), (3, 0.5)], frontier=True)
    assert line.path == [(1, 0.2), (3, 0.5)]


@pytest.fixture(scope="module")
def tiny():
    """A study of one model that trains and one that cannot."""
    flags = {"d_model": 8, "vocab_size": 16, "length": 8, "pairs": 2, "examples": 64, "test_examples": 32}
    flags |= {"epochs": 1, "batch_size": 32, "learning_rates": "1e-2,1e-3"}
    jobs = [Job("Attention", "d 8", "attention", flags), Job("Based", "d 8", "based", {**flags, "pairs": 5})]
    return dataclasses.replace(mqar_tradeoff.STUDY, jobs=dict.fromkeys(study.SCALES, jobs))


@pytest.mark.slow
def test_a_study_to_its_end_and_again(tiny, tmp_path, capsys):
    out = ["--out", str(tmp_path / "out")]
    assert study.main(tiny, [*out, "--dry-run"]) == 0
    assert capsys.readouterr().out.count("based-jax train mqar") == 2
    assert study.main(tiny, out) == 1
    results = (tmp_path / "out" / "results.jsonl").read_text()
    records = [json.loads(line) for line in results.splitlines()]
    assert [record["status"] for record in records].count("finished") == 2
    (failed,) = [record for record in records if record["status"] == "failed"]
    assert failed["exit_status"] == 2
    assert "pairs" in failed["error"]
    assert (tmp_path / "out" / "figure.png").exists()
    assert study.main(tiny, [*out, "--families", "Attention"]) == 0
    assert (tmp_path / "out" / "results.jsonl").read_text() == results

    with pytest.raises(ValueError, match="another directory"):
        study.main(tiny, [*out, "--scale", "cpu"])
    with pytest.raises(ValueError, match="families"):
        study.main(tiny, [*out, "--families", "Attenti0n"])
    with pytest.raises(SystemExit):
        study.main(tiny, [*out, "--at-once", "0"])
    assert "at_once = 0: expected at least 1" in capsys.readouterr().err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "results.jsonl").touch()
    with pytest.raises(ValueError, match=r"study\.json"):
        study.main(tiny, ["--out", str(tmp_path / "other")])
