"""A run's directory: one writer at a time, settings that are kept, files that others left or damaged."""

import dataclasses
import errno
import json
import os

import pytest

from based_jax.command import run
from based_jax.directory_lock import sole_writer
from based_jax.training.commands import classify, demo, lm, mqar, synthetic
from based_jax.training.recipes import with_recipe
from based_jax.training.run.checkpoints import SaveFailed, naming_the_last_checkpoint
from based_jax.training.run.directory import parse_run, prepare_run

COMMANDS = {
    "lm": (lm, ["--preset", "attn-tiny", "--data", "/no/such/data"]),
    "lm --resume": (lm, ["--resume"]),
    "demo": (demo, []),
    "mqar": (mqar, ["--mixer", "attention"]),
    "classify": (classify, ["--preset", "attn-tiny", "--data", "/no/such/data"]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_directory_in_use_is_refused_in_one_line(name, tmp_path, capsys):
    """Before anything is read or written."""
    command, flags = COMMANDS[name]
    words = [*flags, "--workdir", str(tmp_path)]
    with sole_writer(tmp_path), pytest.raises(SystemExit) as ended:
        run(command.PROG, lambda: command.main(words))
    assert ended.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"{command.PROG}: {tmp_path} is in use by process ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["lm", "classify"])
def test_a_directory_with_checkpoints_is_refused_before_the_data_is_read(name, tmp_path):
    (tmp_path / "checkpoints/3").mkdir(parents=True)
    command, flags = COMMANDS[name]
    with pytest.raises(ValueError, match="--resume: this one holds checkpoints of a run"):
        command.main([*flags, "--workdir", str(tmp_path)])


def saved_config(directory, **changes):
    """Write the config.json of a language model's run with `changes` of its settings; return the settings."""
    settings = lm.LMConfig(workdir=directory, batch_size=3, seed=7, dtype="float32")
    train = json.loads(json.dumps(dataclasses.asdict(settings), default=str))
    train.pop("hosts")
    content = {"train": {**train, **changes}, "data": {"crc32": 1}}
    (directory / "config.json").write_text(json.dumps(content))
    return dataclasses.replace(settings, resume=True)


@pytest.mark.parametrize(
    "words",
    [
        ["--workdir", "RUN", "--resume"],
        ["--workdir=RUN", "--resume"],
        ["--resume", "--workdir", "elsewhere", "--workdir=RUN"],
        ["--no-resume", "--workdir=RUN", "--resume"],
    ],
    ids=" ".join,
)
def test_resume_takes_the_saved_settings_however_the_directory_is_given(words, tmp_path):
    settings = saved_config(tmp_path)
    assert parse_run(lm.LMConfig, [word.replace("RUN", str(tmp_path)) for word in words], lm.PROG) == settings


def test_the_last_of_several_flags_counts(tmp_path):
    saved_config(tmp_path)
    given = ["--workdir", str(tmp_path), "--resume", "--no-resume"]
    assert parse_run(lm.LMConfig, given, lm.PROG).seed == lm.LMConfig(tmp_path).seed
    for name, steps in (("a", 3), ("b", 5)):
        (tmp_path / f"{name}.toml").write_text(f"steps = {steps}")
    recipes = ["--recipe", str(tmp_path / "a.toml"), f"--recipe={tmp_path}/b.toml"]
    assert with_recipe(recipes, lm.LMConfig)[:2] == ["--steps", "5"]


def test_a_run_is_resumed_with_its_own_model(tmp_path, capsys):
    """A preset's file may have changed since."""
    run = {"config": saved_config(tmp_path), "data": {"crc32": 1}, "may_change": ("resume", "workdir")}
    model = {"schedule": "W", "dtype": "float32", "mixers": {"W": {"options": {"sizes": (8, 8)}}}}
    (tmp_path / "config.json").unlink()
    prepare_run(model=model, **run)
    assert capsys.readouterr().err == f"{tmp_path}: nothing to resume, so a new run begins\n"
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)
    prepare_run(model={**model, "dtype": "bfloat16"}, **run)  # of another device
    with pytest.raises(ValueError, match=r"mixers = .*: expected .* as in the run that is resumed"):
        prepare_run(model={**model, "mixers": {"W": {"options": {"sizes": (8, 4)}}}}, **run)
    damaged = json.loads((tmp_path / "config.json").read_text()) | {"model": [1]}
    (tmp_path / "config.json").write_text(json.dumps(damaged))
    with pytest.raises(ValueError, match=r"expected .* with the objects train, data, model"):
        prepare_run(model=model, **run)


def test_a_model_in_the_directory_is_not_overwritten(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama"}')
    run = {"config": lm.LMConfig(workdir=tmp_path), "data": {"crc32": 1}, "may_change": ()}
    with pytest.raises(ValueError, match=r"config.json = \['model_type'\]: expected a run's config.json"):
        prepare_run(model={}, **run)
    assert path.read_text() == '{"model_type": "llama"}'


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": "seven"}, "Error parsing --seed: invalid literal for int() with base 10: 'seven'"),
        ({"seed": True}, "Missing value for argument '--seed'"),
        ({"batch_size": 0}, "batch_size = 0: expected at least 1"),
        ({"optimizer": {"rate": 5}}, "Unrecognized options: --rate"),
        ({"colour": 1}, "Unrecognized options: --colour"),
    ],
    ids=str,
)
def test_wrong_saved_settings_are_named(changes, message, tmp_path, capsys):
    saved_config(tmp_path, **changes)
    with pytest.raises(SystemExit) as ended:
        parse_run(lm.LMConfig, [f"--workdir={tmp_path}", "--resume"], lm.PROG)
    assert ended.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"{lm.PROG}: {tmp_path}/config.json: ")
    assert message in said


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"5", b"\xff\0", b"[" * 10**5, b'{"train": 5, "data": {}}', b'{"train": {}}'],
    ids=lambda content: str(content[:20]),
)
def test_a_config_that_is_none_is_named(content, tmp_path):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"config.json") as refused:
        parse_run(lm.LMConfig, [f"--workdir={tmp_path}", "--resume"], lm.PROG)
    assert "\n" not in str(refused.value)
    if b'"train": {}' not in content:  # of MQAR's there need be no more
        with pytest.raises(ValueError, match=r"config.json"):
            synthetic.train_synthetic(synthetic.SyntheticConfig(mixer="attention", workdir=tmp_path))


def test_a_full_disk_at_the_end_names_what_is_safe(tmp_path):
    writing = naming_the_last_checkpoint(tmp_path, tmp_path / "model")
    with pytest.raises(SaveFailed, match=r"; there is no checkpoint yet$"), writing:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for name in ("5", "10", "15.orbax-checkpoint-tmp"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    message = (
        rf"^{tmp_path}/model cannot be written: No space left on device; the run is not lost, "
        rf"--resume writes it again from its last complete checkpoint: {tmp_path}/checkpoints/10$"
    )
    with pytest.raises(SaveFailed, match=message), naming_the_last_checkpoint(tmp_path, tmp_path / "model"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
