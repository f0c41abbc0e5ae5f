"""`python -m benchmarks loader` on tiny sizes: shards that can be read, rates, tables."""

import json

import pytest

from based_jax.data.shards.reader import TokenShards
from benchmarks.__main__ import main
from benchmarks.data import loader, loader_run
from tests.benchmarks.refusals import expect_one_line

PAGE = "before\n<!-- loader -->\nold\n<!-- /loader -->\nafter\n"
RUN = {"first_step_seconds": 1.5, "tokens_per_second": 4e3, "anonymous_mib": 700, "mapped_mib": None}


def test_random_shards_are_those_of_a_manifest(tmp_path, monkeypatch):
    monkeypatch.setattr(loader_run, "SHARD_TOKENS", 20_000)
    loader_run.write_random_shards(tmp_path, 100_000)
    for side, sizes in (("train", [20_000, 20_000, 10_000]), ("held_out", [1 << 14])):
        shards = TokenShards.open(tmp_path, side)
        assert shards.sizes.tolist() == sizes
        streams = [shards.shard(number) for number in range(len(sizes))]  # with all checks
        assert all(5 < stream.starts.size < 60 for stream in streams)


def test_rates_and_runs_are_reported(tmp_path, monkeypatch, capsys):
    """The runs, which take seconds each, are not made."""
    monkeypatch.setattr(loader, "train", lambda data, workdir, steps: {**RUN, "anonymous_mib": 690 + steps})
    (tmp_path / "page.md").write_text(PAGE)
    sizes = ["--gigabytes", "0.0001", "--length", "32", "--samples", "2", "--seconds", "0.01", "--steps", "3"]
    files = ["--json", str(tmp_path / "loader.json"), "--markdown", str(tmp_path / "page.md")]
    assert main(["loader", *sizes, *files, "--scratch", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loader.json", "page.md"]
    result = json.loads((tmp_path / "loader.json").read_text())
    assert result["complete"]
    *rates, run = result["rows"]
    ways = {(row["source"], row["cross_documents"]) for row in rates}
    assert len(ways) == len(rates) == 4
    assert all(row["tokens_per_second"] > 0 for row in rates)
    assert run == {"kind": "run", "gigabytes": 0.0001, **RUN, "anonymous_mib": 693}
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("before\n<!-- loader -->\n")
    assert "| shards | yes |" in page
    assert "| 0.0001 | 1.5 | 693 | 0 | \N{EN DASH} | 4,000 |" in page
    assert page.endswith("<!-- /loader -->\nafter\n")
    assert "million tokens/s" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_is_measured(tmp_path):
    loader_run.write_random_shards(tmp_path / "data", 100_000)
    found = loader_run.train(tmp_path / "data", tmp_path / "run", 2)
    assert found["first_step_seconds"] > 0
    assert found["tokens_per_second"] > 0
    assert found["anonymous_mib"] > 50


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--steps", "0"], "--steps = 0: expected at least 1"),
        (["--seconds", "0"], "--seconds = 0.0: expected more than 0 seconds"),
        (["--gigabytes", "0.000001"], "--gigabytes = '1e-06': expected one or more sizes above"),
        (["--json", "/no/such/dir/a.json"], "--json = '/no/such/dir/a.json': cannot be written"),
    ],
)
def test_bad_flags_are_one_line(flags, message, capsys):
    expect_one_line("loader", flags, message, capsys)
