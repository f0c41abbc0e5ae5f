"""Settings of older versions."""

import dataclasses
import json
from pathlib import Path

import pytest

from based_jax.training.commands import lm
from based_jax.training.optimizer import OptimizerConfig
from based_jax.training.run.directory import parse_run, prepare_run
from based_jax.training.run.older_runs import todays_settings


def as_saved(config: lm.LMConfig) -> dict:
    return json.loads(json.dumps(dataclasses.asdict(config), default=str))


@pytest.mark.parametrize(("switch", "name"), [(True, "block"), (False, "none")])
def test_an_older_run_resumes_under_todays_names(switch, name, tmp_path):
    settings = as_saved(lm.LMConfig(workdir=tmp_path))
    for new in ("schedule", "filter_learning_rate_share", "moment_dtype", "final_learning_rate_share"):
        del settings["optimizer"][new]
    settings["remat"], settings["optimizer"]["final_learning_rate"] = switch, 0.25
    (tmp_path / "config.json").write_text(json.dumps({"train": settings, "data": {"crc32": 0}}))
    (tmp_path / "checkpoints" / "5").mkdir(parents=True)
    parsed = parse_run(lm.LMConfig, ["--workdir", str(tmp_path), "--resume"], lm.PROG)
    assert (parsed.remat, parsed.optimizer) == (name, OptimizerConfig(final_learning_rate_share=0.25))
    prepare_run(parsed, model={}, data={"crc32": 0}, may_change={"resume"})


def test_todays_settings_stay():
    settings = as_saved(lm.LMConfig(workdir=Path("runs/a"), optimizer=OptimizerConfig(beta2=0.98)))
    assert todays_settings(settings) == settings
