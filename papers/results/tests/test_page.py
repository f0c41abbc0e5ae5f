"""The page and what fills it: computed values, results of evaluations, runs of studies."""

import json

import pytest

from based_jax.experiments import mqar_tradeoff
from based_jax.published import table
from papers.results.__main__ import main
from papers.results.measured import Results, measured
from papers.results.page import page
from papers.results.states import state_bytes
from tests.floors import ROOT

RECALL = {
    "options": {"checkpoint": "hazyresearch/based-360m", "task": "fda", "data": "hub", "padding": "authors"},
    "examples": 1102,
    "contains": 14.25,
}
SLICES = {
    name: {"tokens": 5, "share": 0.1, "loss": loss, "perplexity": perplexity}
    for name, loss, perplexity in (("all", 2.2, 9.0), ("hits", 0.9, 2.5), ("other", 2.3, 10.0))
}
PERPLEXITY = {
    "info": {"checkpoint": "runs/zoology-hyena-158m/", "data": "pile.jsonl", "length": 2048, "counts": {}},
    "slices": SLICES,
    "gap_explained": 0.75,
}
LM_EVAL = {
    "options": {"checkpoint": "based-360m", "suite": "superglue", "num_fewshot": "5", "dtype": "bfloat16"},
    "lm_eval": "0.4.13",
    "columns": {"boolq": 50.25, "average": 47.5},
}


def results(directory, **contents):
    (directory / "evals").mkdir()
    for name, content in contents.items():
        (directory / "evals" / f"{name}.json").write_text(json.dumps(content))
    return Results(directory)


def cells(found, **kind):
    """Our values of the rows with these cells, by column."""
    return {
        column: value
        for (index, column), value in measured(table(found[0]), found[1]).items()
        if kind.items() <= table(found[0]).rows[index].items()
    }


@pytest.mark.slow
def test_recall_fills_its_checkpoint(tmp_path):
    swde = {**RECALL, "contains": 26.0, "options": {**RECALL["options"], "task": "swde"}}
    old = {**swde, "contains": 21.0}
    old["options"] = {**swde["options"], "data": "hf:hazyresearch/based-swde"}
    found = results(tmp_path, fda=RECALL, swde=swde, swde_before=old)
    assert cells(("based_readme_recall", found), checkpoint="based-360m") == {"fda": 14.25, "swde": 26.0}
    assert not cells(("based_readme_recall", found), checkpoint="attn-360m")
    ours = cells(("based_table_1", found), size="363m/10b")
    assert (ours["fda"], ours["swde"]) == (14.25, 26.0)
    assert cells(("based_table_1_v1", found), size="363m") == {"fda": 14.25, "swde": 21.0}
    assert "fda" not in cells(("based_table_1", found), size="363m/30b")


@pytest.mark.slow
def test_perplexity_fills_its_run(tmp_path):
    without_counts = {**PERPLEXITY, "info": {"checkpoint": "attn-360m", "data": "p", "length": 2048}}
    dna = {**PERPLEXITY, "info": {"checkpoint": "runs/hg38-based-49m", "data": "d", "length": 1024}}
    found = results(tmp_path, hyena=PERPLEXITY, attention=without_counts, dna=dna)
    ours = cells(("zoology_table_1", found), model="Hyena", parameters=158)
    assert (ours["ppl"], ours["loss_ar"], ours["ppl_other"], ours["gap"]) == (9.0, 0.9, 10.0, 75.0)
    ours = cells(("based_table_1", found), size="360m/10b")
    assert ours["ppl"] == 9.0
    assert "ppl_ar" not in ours  # without counts these are other tokens
    ours = cells(("based_table_4", found), model="Based")
    assert (ours["1024"], ours.keys()) == (9.0, {"size", "1024"})


def test_lm_eval_fills_the_row_with_as_many_examples(tmp_path):
    other = {**LM_EVAL, "columns": {"piqa": 64.0, "average": 43.5}}
    other["options"] = {"checkpoint": "based-360m", "suite": "common_sense"}
    found = results(tmp_path, superglue=LM_EVAL, common_sense=other)
    assert cells(("based_table_3", found), model="Based", shots=5) == {"boolq": 50.25, "average": 47.5}
    assert not cells(("based_table_3", found), model="Based", shots=1)
    assert cells(("based_table_2", found), size="363m/10b") == {"piqa": 64.0, "average": 43.5}
    assert cells(("based_table_1", found), size="363m/10b")["average"] == 43.5


@pytest.mark.slow
def test_only_studies_at_the_papers_scale_fill_cells(tmp_path):
    job = mqar_tradeoff.STUDY.jobs["paper"][6]  # Based, d 64, d' 16
    row = {
        "job": job.name,
        "family": job.family,
        "setting": job.setting,
        "d_model": 64,
        "state_size": 10_137,
        "learning_rate": 1e-3,
        "status": "finished",
        "accuracy": 0.9125,
    }
    for scale in ("paper", "cpu"):
        path = tmp_path / scale
        path.mkdir()
        (path / "study.json").write_text(json.dumps({"study": "mqar_tradeoff", "scale": scale}))
        (path / "results.jsonl").write_text(json.dumps(row) + "\n")
    assert measured(table("based_figure_2"), Results(tmp_path / "paper")) == {(6, "accuracy"): 0.9125}
    assert table("based_figure_2").rows[6]["accuracy"] == 0.912
    assert measured(table("based_figure_2"), Results(tmp_path / "cpu")) == {}
    written = page(Results(tmp_path))
    assert "`--scale cpu` (`cpu`), so its cells are not comparable" in written
    assert "| 40,548 | - | 0.912 |" in written  # what older results hold is not known


def test_states_are_counted_as_the_authors_do():
    for row in table("zoology_states").rows:
        ours = state_bytes(row)
        if row["model"] == "native sparse attention":
            assert ours is None
        else:
            assert abs(ours - row["state_bytes"]) <= (0 if row["read"] == "code" else 600), row


def test_values_are_written_with_the_published_decimals(tmp_path):
    results(tmp_path, fda=RECALL)
    text = page(Results(tmp_path))
    assert "| checkpoint | size | swde ↑ | fda ↑ | ours | squad_completion ↑ |" in text
    assert "| based-360m | 363m/10b | 25.65 | 14.34 | 14.25 | 24.23 |" in text
    assert "| attn-360m | 360m/10b | 56.26 | 57.89 | - | 27.85 |" in text
    assert "| Attention | 73 | 73.2 | 1.52 | 1.52 | 12.99 |" in text
    assert "- based-360m, fda: `fda.json`, 1,102 examples of hub, authors padding, own dtype." in text


def test_the_command_writes_and_compares(tmp_path, capsys):
    out = tmp_path / "results.md"
    flags = ["--results", str(ROOT / "results"), "--out", str(out)]
    assert main([*flags, "--check"]) == 1
    assert "results.md is not up to date: run python -m papers.results" in capsys.readouterr().err
    assert main(flags) == main([*flags, "--check"]) == 0
    assert out.read_text() == (ROOT / "papers" / "results" / "README.md").read_text()
