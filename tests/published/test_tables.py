"""The data files: complete, described, unique rows, numbers where numbers should be, clear errors."""

import importlib
import importlib.util
import shlex
from pathlib import Path

import pytest

import based_jax.published
from based_jax import command
from based_jax.__main__ import console_commands
from based_jax.models import presets
from based_jax.published import Column, names, number, table
from based_jax.published.tables import preset_of, run_of
from papers.results.parameters import PRINTED
from tests.floors import ROOT

DATA = Path(based_jax.published.__file__).parent / "data"


def test_every_file_is_described_and_every_description_has_a_file():
    assert {path.stem for path in DATA.glob("*.csv")} == set(names())


@pytest.mark.parametrize("name", names())
def test_tables_are_whole(name):
    found = table(name)
    assert found.name == name
    assert found.source
    assert found.title
    assert found.rows
    assert len(found.rows) == len(found.printed)
    keys = [tuple(row[column] for column in found.key) for row in found.rows]
    assert len(set(keys)) == len(keys)
    for column, about in found.about.items():
        assert about.about
        assert about.better in ("", "higher", "lower")
        kinds = {type(row[column]) for row in found.rows} - {type(None)}
        assert kinds <= {str} or kinds <= {int, float}, column
        if about.better:
            assert str not in kinds, f"{column} is not numbers"
    for row in found.printed:
        assert all(cell == cell.strip() for cell in row.values())


def test_names_of_the_papers_tables():
    assert table("based", 2) is table("based_table_2")
    assert table("zoology", 6).rows[1]["ppl"] == 9.65
    with pytest.raises(
        ValueError, match=r"^table = 'based_table_9': expected one of 'claims', .*'based_table_6'"
    ):
        table("based", 9)
    with pytest.raises(ValueError, match="table = 'nobody'"):
        table("nobody")


def test_one_row():
    found = table("based", 3)
    assert found.row(model="Mamba", shots=5)["boolq"] == 41.1
    assert found.printed[-1]["cb"] == "37.5"
    with pytest.raises(
        ValueError, match=r"^row of based_table_3 = \{'model': 'Mamba'\}: expected one of model="
    ):
        found.row(model="Mamba")
    with pytest.raises(ValueError, match="expected one of"):
        found.row(model="Mamba", shots=2)


def test_empty_cells_and_text():
    row = table("based", 5).row(model="Mamba")
    assert row["ocr"] is None
    assert number(row, "nontata_promoters") == 96.6
    with pytest.raises(ValueError, match=r"^ocr = None: expected a number$"):
        number(row, "ocr")
    with pytest.raises(ValueError, match=r"^model = 'Mamba': expected a number$"):
        number(row, "model")
    # One cell that is no number makes the column text.
    assert table("hyperattention_table_2").row(model="Self-attention")["order"] == "2"


def test_columns_of_a_table_replace_the_shared_ones():
    assert table("zoology", 6).about["parameters"] == Column("parameters", "billions")
    assert table("zoology", 4).about["parameters"] == Column("parameters", "millions")


def test_rows_know_their_presets_and_checkpoints():
    based = table("based", 1)
    found = {row["size"]: (preset_of(based, row), run_of(based, row)) for row in based.rows}
    assert found["363m/10b"] == ("based-360m", "based-360m")
    assert found["363m/30b"] == ("based-360m", None)
    assert found["1.35b/50b"] == ("based-1b", "based-1b-50b")
    assert found["1.33b/50b"] == ("attn-1b", None)
    assert {row["checkpoint"] for row in table("based_readme_recall").rows} == {
        run_of(table("based_readme_recall"), row) for row in table("based_readme_recall").rows
    }
    pythia = table("based", 2).row(model="Pythia")
    assert preset_of(table("based", 2), pythia) is run_of(table("based", 2), pythia) is None
    assert run_of(table("based", 3), table("based", 3).rows[0]) == "based-360m"
    figure = table("based_figure_2")
    assert {preset_of(figure, row) for row in figure.rows} == {None}


def test_every_preset_of_zoology_has_its_row():
    rows = {
        preset_of(found, row): (
            number(row, "parameters") * (1000 if row["parameters"] < 2 else 1),
            row["tflops"],
        )
        for found in (table("zoology", index) for index in (1, 2, 4, 6))
        for row in found.rows
    }
    suite = [name for name in presets.names() if name.startswith("zoology")]
    assert set(suite) == rows.keys() - {None}
    assert all(PRINTED[name].millions == rows[name][0] for name in suite)


@pytest.mark.parametrize("line", dict.fromkeys(line for name in names() for line in table(name).measure))
def test_commands_are_ones_that_the_programs_take(line, monkeypatch):
    class Parsed(Exception):
        pass

    def only_parse(*args, parse=command.parse, **keywords):
        parse(*args, **keywords)
        raise Parsed

    monkeypatch.chdir(ROOT)  # results/evals is there
    monkeypatch.setattr(command, "parse", only_parse)
    program, *words = shlex.split(line)
    if program == "based-jax":
        known = console_commands(ROOT / "based_jax")
        count = 2 if " ".join(words[:2]) in known else 1
        name, flags = known[" ".join(words[:count])][0], words[count:]
    else:
        name, flags = words[1], words[2:]
    before: list[object] = []
    if name.startswith("based_jax.experiments"):
        before, name = [importlib.import_module(name).STUDY], "based_jax.experiments.study"
    is_package = importlib.util.find_spec(name).submodule_search_locations is not None
    module = importlib.import_module(f"{name}.__main__" if is_package else name)
    with pytest.raises(Parsed):
        module.main(*before, flags)
