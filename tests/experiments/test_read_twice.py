"""The study of repeated contexts: its jobs, its figure, and its task's forms."""

import pytest

from based_jax.command import parse
from based_jax.experiments import read_twice, study
from based_jax.training.commands.synthetic import SyntheticConfig


@pytest.mark.parametrize("scale", study.SCALES)
def test_jobs_of_a_form_differ_only_in_the_model(scale):
    jobs = read_twice.STUDY.jobs[scale]
    assert len({job.name for job in jobs}) == len(jobs)
    tasks: dict[str, set[str]] = {}
    for job in jobs:
        tasks.setdefault(job.facts["form"], set()).add(job.flags["task"])
    assert all(len(found) == 1 for found in tasks.values())
    assert len(set.union(*tasks.values())) == len(read_twice.FORMS)
    settings = parse(SyntheticConfig, jobs[-1].arguments, prog="test")
    (train,), (test,) = settings.segments
    assert (train.num_passes, train.num_queries, train.asked_first) == (2, 2, True)
    assert test.num_pairs == train.num_pairs == jobs[-1].flags["pairs"]
    assert settings.architecture.d_model == jobs[-1].flags["d_model"]


def test_the_figure_has_every_form():
    rows = [
        {
            "job": job.name,
            "family": job.family,
            "form": job.facts["form"],
            "accuracy": 0.5,
            "learning_rate": 0.01,
            "status": "finished",
        }
        for job in read_twice.STUDY.jobs["cpu"]
    ]
    panels = read_twice.STUDY.panels(rows, "cpu")
    forms = list(read_twice.FORMS)
    assert [panel.title for panel in panels] == [*forms, *(f"{form}, 40 epochs" for form in forms)]
    assert all(set(panel.values) == set(read_twice.MODELS) for panel in panels)
