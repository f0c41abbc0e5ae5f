"""The papers' runs as files."""

import re
import shlex
from pathlib import Path

import pytest

import based_jax as bj
from based_jax.command import parse
from based_jax.models import LanguageModel
from based_jax.published.tables import names, table
from based_jax.training.commands import lm
from based_jax.training.commands.tokenize import TokenizeConfig
from based_jax.training.recipes import read_recipe, with_recipe
from papers.results.parameters import PRINTED
from tests.marks import release_but, slow_but

GPT2_VOCAB = bj.presets.get("based-360m").vocab_size

FOLDER = Path(__file__).parents[2] / "based_jax" / "recipes"
EVERY = sorted(FOLDER.glob("*.toml"))
# Those of hyper_lm are compared with the study in tests/experiments.
RECIPES = [path for path in EVERY if not path.stem.startswith("hyper-")]


def parsed(*flags: str) -> lm.LMConfig:
    return parse(lm.LMConfig, with_recipe(flags, lm.LMConfig), prog=lm.PROG)


@pytest.mark.parametrize(
    "path",
    release_but(["based-360m-10b", "zoology-retnet-152m"], RECIPES, lambda path: path.stem),
    ids=lambda path: path.stem,
)
def test_a_recipe_trains_the_printed_model_on_the_stated_tokens(path):
    recipe = read_recipe(path, lm.LMConfig)
    config = parsed("--recipe", str(path), "--workdir", "runs/a")
    assert config.recipe == str(path)
    model = lm.model_config(config, GPT2_VOCAB)
    assert config.steps * config.batch_size * model.max_length == recipe.tokens
    assert f"{round(recipe.tokens / 1e9 / 1.048576)} billion tokens" in recipe.title
    # The preset itself, whose number of parameters tests/docs/test_tables.py compares with the printed one.
    assert config.preset in PRINTED
    preset = bj.presets.get(config.preset)
    assert model.replace(dtype=preset.dtype) == preset


@pytest.mark.release
@pytest.mark.parametrize("path", slow_but(RECIPES[::8], EVERY), ids=lambda path: path.stem)
def test_a_dry_run_names_the_shards(path, tmp_path, monkeypatch, capsys):
    """The programs, which the next test builds and nothing compiles, are left out."""
    monkeypatch.chdir(tmp_path)
    planned = []
    for name in ("use_virtual_devices", "make_programs"):
        monkeypatch.setattr(lm, name, lambda *_: None)
    monkeypatch.setattr(lm, "describe_trained", lambda *_: {})
    monkeypatch.setattr(lm, "dry_run", lambda programs, shape, segments: planned.append((shape, segments)))
    recipe = read_recipe(path, lm.LMConfig)
    assert lm.main(["--recipe", str(path), "--workdir", "run", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    folder = recipe.flags["data"].removeprefix("tokens:")
    assert lines[0] == f"data        tokens:{folder}: no token shards yet"
    assert lines[1] == f"make them   {recipe.shards}"
    words = shlex.split(recipe.shards)
    assert words[:3] == ["based-jax", "train", "tokenize"]
    made = parse(TokenizeConfig, words[3:], prog="test")
    assert (str(made.out), made.tokenizer) == (folder, recipe.flags["tokenizer"])
    assert made.held_out_bytes, "evaluations read the whole held-out side"
    assert planned == [((recipe.flags["batch-size"], recipe.flags["length"]), False)]
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.stem)
def test_the_programs_of_a_recipe_can_be_built(path):
    config = parsed("--recipe", str(path), "--workdir", "run")
    programs = lm.make_programs(config, LanguageModel(lm.model_config(config, GPT2_VOCAB)), None)
    assert programs.abstract_state.params


def test_printed_commands_are_the_recipes():
    """A command of papers/results that trains a model of the Pile takes its recipe, and adds data alone."""
    lines = {
        line for name in names() for line in table(name).measure if "train lm" in line and "pile/" in line
    }
    assert lines
    for line in lines:
        flags = dict(re.findall(r"--([\w-]+) (\S+)", line))
        assert set(flags) == {"recipe", "data", "workdir"}, line
        assert Path(flags["recipe"]).stem.startswith(Path(flags["workdir"]).name)
        assert FOLDER / Path(flags["recipe"]).name in RECIPES


def test_what_is_typed_wins():
    path = str(FOLDER / "zoology-retnet-152m.toml")
    assert parsed("--workdir", "x", f"--recipe={path}").optimizer.schedule == "linear"
    typed = parsed(
        "--workdir", "x", "--steps", "7", "--schedule", "cosine", "--recipe", path, "--decay-norms"
    )
    assert (typed.steps, typed.optimizer.schedule, typed.optimizer.decay_norms) == (7, "cosine", True)
    assert typed.optimizer.weight_decay == 0.05


def test_a_recipe_of_the_package_is_found_everywhere_unless_there_is_another(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = "--workdir", "x", "--recipe", "recipes/hyper-a-ha.toml"
    config = parsed(*flags)
    assert lm.model_config(config, 50_257).max_length == config.length == 256
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "hyper-a-ha.toml").write_text("steps = 7")
    assert parsed(*flags).steps == 7
    with pytest.raises(OSError, match=r"No such file or directory: 'recipes/other\.toml'"):
        parsed("--workdir", "x", "--recipe", "recipes/other.toml")


def test_a_recipe_needs_no_metadata_and_takes_either_spelling(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'preset = "attn-tiny"\nbatch_size = 2\n"eval-every" = 7\n'
        "[flags]\ndecay-norms = true\nlearning_rate = 2e-3\nheartbeat_timeout = 50"
    )
    config = parsed("--workdir", "x", "--recipe", str(path))
    assert (config.preset, config.batch_size, config.eval_every) == ("attn-tiny", 2, 7)
    assert (config.optimizer.decay_norms, config.optimizer.learning_rate) == (True, 2e-3)
    assert config.hosts.heartbeat_timeout == 50


def test_a_bad_recipe_is_one_line(tmp_path):
    path, as_key = tmp_path / "recipe.toml", "expected a flag of the command as key"
    for content, message in {
        "steps = ": "expected TOML",
        "[flags]\nstep = 1": f"step = 1: {as_key}, such as steps",
        "batchsize = 1": f"batchsize = 1: {as_key}, such as batch-size",
        "[optimiser]\nclip = 1": rf"optimiser = .*: {as_key}",
        "steps = [1]": r"steps = \[1\]: expected a string, a number or a boolean",
        "steps = 1\n[flags]\nsteps = 2": "steps = 2: expected each flag once",
        "flags = 1": r"flags = 1: expected a table, \[flags\]",
    }.items():
        path.write_text(content)
        with pytest.raises(ValueError, match=message):
            with_recipe(["--recipe", str(path)], lm.LMConfig)
