"""Models on the hub, by a stand-in of its HTTP interface: there and back, pinned, interrupted, damaged."""

import json
import sys
from pathlib import Path

import chex
import pytest

pytest.importorskip("huggingface_hub")
import huggingface_hub
import yaml
from huggingface_hub import constants
from huggingface_hub.utils import disable_progress_bars

import based_jax as bj
from based_jax.convert import Measurement, ModelCard, hub
from based_jax.convert import __main__ as convert
from based_jax.convert.model_card import MARK
from based_jax.convert.pretrained import load_pretrained, save_pretrained
from based_jax.convert.push import push_to_hub, upload
from based_jax.models import MixerSpec, ModelConfig
from tests.commands import run_here
from tests.convert.hub_server import TOKEN, Hub, Refused, serving
from tests.convert.random_models import drawn

# huggingface_hub 2.4 uploads a file as httpx2 would rather not have it (November 2026).
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

CHECKPOINTS = Path(__file__).parents[1] / "fixtures" / "checkpoints"
NAME = "owner/small"


@pytest.fixture(scope="module")
def server():
    with serving() as found:
        yield found


@pytest.fixture
def remote(server, tmp_path, monkeypatch) -> Hub:
    """An empty hub that huggingface_hub talks to, with an empty cache."""
    stored, address = server
    stored.__init__()
    for name, value in {
        "ENDPOINT": address,
        "HUGGINGFACE_CO_URL_TEMPLATE": address + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_HUB_DISABLE_XET": True,  # the stand-in has no such storage
        "HF_HUB_OFFLINE": False,
    }.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between two attempts
    disable_progress_bars()
    return stored


MODEL = bj.LanguageModel(ModelConfig(11, 16, "MM", {"M": MixerSpec("gated_conv")}, 8))
PARAMS = drawn(MODEL)
WEIGHTS = "model.safetensors"
SHARDED = {"max_shard_bytes": 2000}


def files_of(remote: Hub, revision: str = "main") -> dict[str, bytes]:
    return remote.find(NAME, revision)[1]


def gets(remote: Hub, name: str) -> list[str]:
    """The downloads of a file."""
    return [line for line in remote.requests if line.startswith("GET") and name in line]


class TestThereAndBack:
    def test_the_same_bits(self, remote):
        pushed = push_to_hub(NAME, MODEL, PARAMS)
        assert set(files_of(remote)) == {".gitattributes", "README.md", "config.json", WEIGHTS}
        assert pushed.commit == remote.refs[NAME]["main"]
        model, params = load_pretrained(NAME)
        assert model == MODEL
        chex.assert_trees_all_equal(params, PARAMS, strict=True)

    def test_the_authors_form_is_fetched_without_its_second_weights(self, remote):
        source = CHECKPOINTS / "based-tiny"
        names = ("config.json", WEIGHTS, "pytorch_model.bin")
        files = {name: (source / name).read_bytes() for name in names}
        remote.commit(NAME, files | {"modeling.py": b"import os", "deep/model.safetensors": b"?"})
        chex.assert_trees_all_equal(load_pretrained(NAME)[1], load_pretrained(source)[1], strict=True)
        fetched = {line.split("/")[-1].strip() for line in remote.requests if line.startswith("GET /owner")}
        assert fetched == {"config.json", WEIGHTS}

    @pytest.mark.parametrize("sharded", [False, True])
    def test_a_push_replaces_the_weights_of_another_form(self, remote, sharded):
        first, second = ({}, SHARDED) if sharded else (SHARDED, {})
        push_to_hub(NAME, MODEL, PARAMS, **first)
        before = remote.refs[NAME]["main"]
        other = drawn(MODEL, seed=1)
        push_to_hub(NAME, MODEL, other, **second)
        assert (WEIGHTS in files_of(remote)) == (not sharded)
        chex.assert_trees_all_equal(load_pretrained(NAME)[1], other, strict=True)
        chex.assert_trees_all_equal(load_pretrained(NAME, revision=before)[1], PARAMS, strict=True)

    def test_a_branch(self, remote):
        push_to_hub(NAME, MODEL, PARAMS)
        push_to_hub(f"{NAME}@next", MODEL, drawn(MODEL, seed=1))
        chex.assert_trees_all_equal(load_pretrained(NAME)[1], PARAMS, strict=True)
        chex.assert_trees_all_equal(load_pretrained(f"{NAME}@next")[1], drawn(MODEL, seed=1), strict=True)


class TestRevisions:
    def test_a_pinned_commit_in_the_cache_asks_nothing(self, remote):
        commit = push_to_hub(NAME, MODEL, PARAMS, **SHARDED).commit
        load_pretrained(NAME, revision=commit)
        remote.requests.clear()
        chex.assert_trees_all_equal(load_pretrained(NAME, revision=commit)[1], PARAMS, strict=True)
        assert not remote.requests

    def test_all_files_are_of_one_commit(self, remote):
        """The branch moves between config.json and the weights."""
        push_to_hub(NAME, MODEL, PARAMS)

        def move(handler):
            if "resolve" in handler.path and "config.json" in handler.path:
                remote.fault = None
                remote.commit(NAME, {**files_of(remote), WEIGHTS: b"?"})

        remote.fault = move
        chex.assert_trees_all_equal(load_pretrained(NAME)[1], PARAMS, strict=True)

    def test_what_is_no_revision(self, remote):
        for source, revision, message in [
            (f"{NAME}@a", "b", "revision = 'b': expected None with"),
            (NAME, "../../x", r"revision = '\.\./\.\./x': expected a branch, tag or commit"),
            (NAME, "", "revision = ''"),
            (str(CHECKPOINTS / "based-tiny"), "main", "revision = 'main': expected None, or a hub id"),
        ]:
            with pytest.raises(ValueError, match=message):
                load_pretrained(source, revision=revision)
            assert not remote.requests


class TestInterruptions:
    def test_files_that_are_there_are_not_fetched_again(self, remote):
        push_to_hub(NAME, MODEL, PARAMS, **SHARDED)
        names = sorted(name for name in files_of(remote) if name.startswith("model-"))

        def fail(handler):
            if handler.command == "GET" and names[-1] in handler.path:
                raise Refused(500)

        remote.fault = fail
        with pytest.raises(FileNotFoundError, match="'owner/small' could not be fetched from the hub"):
            load_pretrained(NAME)
        remote.fault = None
        remote.requests.clear()
        chex.assert_trees_all_equal(load_pretrained(NAME)[1], PARAMS, strict=True)
        assert gets(remote, "model-") == [line for line in gets(remote, "model-") if names[-1] in line]

    def test_an_upload_sends_nothing_twice(self, remote):
        def fail(handler):
            if "/commit/" in handler.path:
                raise Refused(500)

        remote.fault = fail
        with pytest.raises(FileNotFoundError, match=r"could not be pushed to the hub: .*500"):
            push_to_hub(NAME, MODEL, PARAMS)
        remote.fault = None
        remote.requests.clear()
        push_to_hub(NAME, MODEL, PARAMS)
        assert not [line for line in remote.requests if line.startswith("PUT")]
        chex.assert_trees_all_equal(load_pretrained(NAME)[1], PARAMS, strict=True)


class TestRefusals:
    def test_a_damaged_cache(self, remote, tmp_path):
        commit = push_to_hub(NAME, MODEL, PARAMS).commit
        load_pretrained(NAME)
        (weights,) = (tmp_path / "cache").glob(f"*/snapshots/*/{WEIGHTS}")
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
        for revision in (None, commit):
            with pytest.raises(ValueError, match="damaged, its SHA-256 is") as found:
                load_pretrained(NAME, revision=revision)
        Path(str(found.value).partition("remove ")[2].partition(" and")[0]).unlink()
        chex.assert_trees_all_equal(load_pretrained(NAME)[1], PARAMS, strict=True)

    def test_no_repository_or_revision(self, remote):
        push_to_hub(NAME, MODEL, PARAMS)
        for name, revision, message in [
            ("no/body", None, "'no/body': no such directory, and no such model on"),
            (NAME, "v9", "revision = 'v9': expected a branch, tag or commit of"),
        ]:
            with pytest.raises(FileNotFoundError, match=message):
                load_pretrained(name, revision=revision)

    def test_a_gated_repository(self, remote):
        def fail(handler):
            raise Refused(403, "GatedRepo")

        remote.fault = fail
        with pytest.raises(FileNotFoundError, match="gated: accept its terms"):
            load_pretrained(NAME)

    @pytest.mark.parametrize(
        ("files", "message"),
        [
            ({}, "has no config.json, but nothing"),
            ({WEIGHTS: b"?"}, "has no config.json, but model.safetensors"),
            ({"config.json": b"{}", "evil.pkl": b"?"}, r"no model\.safetensors or .*, but config.json"),
            ({"config.json": b"{}", WEIGHTS: b"?"}, "expected those of a based or attn model"),
            ({"config.json": b'{"format": "based_jax", "version": 9}', WEIGHTS: b"?"}, "version = 9"),
            (
                {"config.json": b'{"model_type": "gemma", "hidden_size": 8}', WEIGHTS: b"?"},
                "model_type = 'gemma': expected a supported model",
            ),
            (
                {"config.json": b'{"n_embd": 8, "n_layer": 1, "no_such_entry": 1}', WEIGHTS: b"?"},
                "'no_such_entry': expected one of",
            ),
        ],
    )
    def test_what_is_no_model(self, remote, files, message):
        remote.commit(NAME, files)
        with pytest.raises((FileNotFoundError, ValueError), match=message):
            load_pretrained(NAME)
        assert not gets(remote, WEIGHTS)

    def test_a_missing_shard(self, remote):
        push_to_hub(NAME, MODEL, PARAMS, **SHARDED)
        files = files_of(remote)
        gone = sorted(name for name in files if name.startswith("model-"))[1]
        del files[gone]
        with pytest.raises(FileNotFoundError, match=f"has no {gone}, as {WEIGHTS}.index.json says"):
            load_pretrained(NAME)

    @pytest.mark.parametrize(
        ("name", "size"), [("config.json", hub.MAX_BYTES), (WEIGHTS, hub.MAX_WEIGHT_BYTES)]
    )
    def test_a_file_that_is_too_large_is_not_fetched(self, remote, name, size):
        push_to_hub(NAME, MODEL, PARAMS)
        remote.sizes[name] = size + 1
        with pytest.raises(ValueError, match=rf"{size + 1:,} bytes, expected at most {size:,}"):
            load_pretrained(NAME)
        assert not gets(remote, name)

    def test_no_network(self, remote, monkeypatch):
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
        with pytest.raises(FileNotFoundError, match=r"no such directory, the hub cannot be reached .*, and"):
            load_pretrained(NAME)

    def test_offline(self, remote, monkeypatch):
        push_to_hub(NAME, MODEL, PARAMS)
        load_pretrained(NAME)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        remote.requests.clear()
        chex.assert_trees_all_equal(load_pretrained(NAME)[1], PARAMS, strict=True)
        with pytest.raises(FileNotFoundError, match=r"cache has no config\.json of 'owner/other' at main"):
            load_pretrained("owner/other")
        assert not remote.requests

    def test_a_cache_without_all_weights(self, remote, monkeypatch):
        push_to_hub(NAME, MODEL, PARAMS)
        huggingface_hub.hf_hub_download(NAME, "config.json")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(FileNotFoundError, match="the cache has not all weights of 'owner/small' at main"):
            load_pretrained(NAME)

    def test_a_token_that_may_not_write(self, remote, monkeypatch):
        monkeypatch.setenv("HF_TOKEN", "hf_other")
        with pytest.raises(PermissionError, match=r"refuses access .*hf auth login"):
            push_to_hub(NAME, MODEL, PARAMS)

    def test_without_the_package(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        for act in (load_pretrained, lambda name: push_to_hub(name, MODEL, PARAMS)):
            with pytest.raises(ImportError, match=r"install huggingface_hub \(pip install"):
                act(NAME)

    def test_names_that_are_none(self, remote):
        for name in ["a b", "a/b/c", "", "-/x@", "../x"]:
            with pytest.raises(ValueError, match="repository = "):
                push_to_hub(name, MODEL, PARAMS)
            assert not remote.requests

    def test_pickles_are_not_uploaded(self, remote, tmp_path):
        with pytest.raises(ValueError, match="expected the native one, without pickles"):
            upload(CHECKPOINTS / "based-tiny", NAME)
        assert not remote.requests


class TestCards:
    CARD = ModelCard(
        training={"data": "stdlib", "steps": 1000},
        measurements=(Measurement("swde", "contains, percent", 12.5),),
        license="mit",
    )

    def front_matter(self, remote) -> dict:
        return yaml.safe_load(files_of(remote)["README.md"].decode().split("---")[1])

    def test_it_names_the_repository(self, remote):
        push_to_hub(NAME, MODEL, PARAMS, card=self.CARD)
        text = files_of(remote)["README.md"].decode()
        assert f'bj.load_pretrained("{NAME}")' in text
        assert "| steps | 1,000 |" in text
        found = huggingface_hub.ModelCard(text).data
        stated = ("license", "library_name", "model_name")
        assert [getattr(found, name) for name in stated] == ["mit", "based_jax", NAME]
        (result,) = found.eval_results
        assert (result.dataset_name, result.metric_value) == ("swde", 12.5)

    def test_a_page_of_ones_own_on_the_hub_is_kept(self, remote):
        push_to_hub(NAME, MODEL, PARAMS)
        files = files_of(remote)
        files["README.md"] = b"# mine"
        remote.commit(NAME, files)
        assert not push_to_hub(NAME, MODEL, drawn(MODEL, seed=1), card=self.CARD).card
        assert files_of(remote)["README.md"] == b"# mine"
        files["README.md"] = f"# theirs\n\n{MARK}\n".encode()
        remote.commit(NAME, files)
        assert push_to_hub(NAME, MODEL, PARAMS, card=self.CARD).card
        assert self.front_matter(remote)["license"] == "mit"


class TestCommand:
    def push(self, capsys, *words):
        return run_here(convert.PROG, convert.main, words, capsys)

    def test_there_and_back(self, remote, tmp_path, capsys):
        run = tmp_path / "run"
        save_pretrained(run / "model", MODEL, PARAMS, card=ModelCard(training={"seed": 3}))
        (run / "model" / "tokenizer.json").write_text('{"type": "byte"}')
        (run / "model" / "secret.txt").write_text("mine")
        results = {
            "options": {"task": "fda", "padding": "correct"},
            "examples": 7,
            "contains": 50.0,
            "standard_error": 20.0,
        }
        (tmp_path / "fda.json").write_text(json.dumps(results))
        flags = ["--license", "apache-2.0", "--results", tmp_path / "fda.json", "--private"]
        done = self.push(capsys, run, f"hf:{NAME}", *flags)
        assert done.status == 0, done.err
        assert f"revision    {remote.refs[NAME]['main']}" in done.out
        assert "tokenizer.json" in files_of(remote)
        assert "secret.txt" not in files_of(remote)
        text = files_of(remote)["README.md"].decode()
        assert "| seed | 3 |" in text
        assert "| fda | contains, percent | 50 | 7 examples" in text
        done = self.push(capsys, NAME, tmp_path / "back")
        assert done.status == 0, done.err
        chex.assert_trees_all_equal(load_pretrained(tmp_path / "back")[1], PARAMS, strict=True)
        assert "license" in (tmp_path / "back" / "README.md").read_text()

    def test_a_page_of_ones_own_goes_along(self, remote, tmp_path, capsys):
        save_pretrained(tmp_path / "a", MODEL, PARAMS)
        page = b"---\nlicense: mit\n---\n# mine\n"
        (tmp_path / "a" / "README.md").write_bytes(page)
        for target in (tmp_path / "b", f"hf:{NAME}"):
            done = self.push(capsys, tmp_path / "a", target, "--license", "mit")
            assert done.status == 0, done.err
            assert "README.md   kept as it was, since it was not written here" in done.out
        assert files_of(remote)["README.md"] == (tmp_path / "b" / "README.md").read_bytes() == page

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("a", "hf:a b"), "repository = 'a b'"),
            (("a", f"hf:{NAME}", "--to", "authors"), "to = 'authors': expected native for the hub"),
            (("a", "b", "--private"), "private = True: expected hf:owner/name as DST"),
            (("nobody/nothing", "b"), "no such model on the hub"),
        ],
    )
    def test_mistakes(self, remote, words, message, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        done = self.push(capsys, *words)
        assert done.status == 2
        assert message in done.err
        assert done.err.count("\n") == 1
