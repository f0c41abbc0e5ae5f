"""lm-eval drives a tiny model: local tasks through its own evaluator, against numbers worked out by hand."""

import functools
import json
import math
import shutil
import warnings

import jax
import numpy as np
import pytest
import scipy.special
import tokenizers

from based_jax import command
from based_jax.convert import load_pretrained, save_pretrained
from based_jax.data.tokenizers import ByteTokenizer, FileTokenizer
from based_jax.evals.lm_eval import __main__ as lm_eval_command
from tests.data.libraries import byte_level, merges
from tests.generate.tiny import make_bytes

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("lm_eval", reason="needs lm-eval: pip install 'based-jax[lm-eval]'")
    import lm_eval.tasks
    from lm_eval import simple_evaluate
    from lm_eval.api.instance import Instance

    from based_jax.evals.lm_eval.model import LMEvalModel

pytestmark = pytest.mark.filterwarnings("ignore")  # lm-eval's and those of what it imports

BYTES = ByteTokenizer()
CONTEXT = 64
# Sums of up to 150 float32 losses of up to 30 nats, added up in another order.
TOLERANCE = 1e-3

ROWS = [
    {"text": f"These are the facts of this sheet.\n{facts}\n{key}", "choices": choices, "label": label}
    for facts, key, choices, label in [
        ("a:x b:yy", "a:", ["x", "yy"], 0),
        ("a:x b:yy", "b:", ["x", "yy"], 1),
        ("b:x c:yy", "c:", [" x", "yy", "zzz"], 1),
        ("b:x", "c: ", ["x", "yy"], 0),  # a space that goes to the choices
    ]
]
TASKS = {
    "facts": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{label}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "last": {
        "output_type": "loglikelihood",
        "doc_to_text": "{{text}}",
        "doc_to_target": "{{choices[label]}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
    },
    "whole": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}{{text}}",  # longer than the context
        "metric_list": [{"metric": "bits_per_byte"}],
    },
    "answers": {
        "output_type": "generate_until",
        "doc_to_text": "{{text}}",
        "doc_to_target": "{{choices[label]}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
}


@pytest.fixture(scope="module")
def model():
    return make_bytes("CL", max_length=CONTEXT)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """A checkpoint, and tasks in YAML files (JSON is YAML)."""
    path = tmp_path_factory.mktemp("lm_eval")
    save_pretrained(path / "model", *model)
    (path / "tasks").mkdir()
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for name, task in TASKS.items():
        source = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {
                "data_files": {"validation": str(path / "rows.jsonl")},
                "cache_dir": str(path / "cache"),
            },
            "validation_split": "validation",
        }
        (path / "tasks" / f"{name}.yaml").write_text(json.dumps(source | task))
    return path


@pytest.fixture
def only_ours(monkeypatch):
    """lm-eval has thousands of tasks and takes seconds to list them."""
    manager = functools.partial(lm_eval.tasks.TaskManager, include_defaults=False)
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", manager)
    for name in lm_eval_command._QUIET:
        monkeypatch.setenv(name, "1")
    return manager


@pytest.fixture(scope="module")
def log_p(model):
    """log p(continuation | context) by one pass, and whether each of its tokens is the likeliest."""
    forward = jax.jit(lambda params, tokens: model[0].apply(params, tokens)[0])

    def score(context, continuation):
        tokens = [*context, *continuation][-CONTEXT - 1 :]
        inputs = np.array([tokens[:-1] + [0] * (CONTEXT + 1 - len(tokens))])
        found = np.asarray(forward(model[1], inputs))[0].astype(np.float64)
        found = scipy.special.log_softmax(found, axis=-1)
        positions = range(len(tokens) - 1 - len(continuation), len(tokens) - 1)
        likeliest = [int(found[position, :257].argmax()) for position in positions]
        return sum(found[position, tokens[position + 1]] for position in positions), likeliest == list(
            continuation
        )

    return score


def ask(adapter, kind, *arguments):
    requests = [Instance(kind, {}, args, index) for index, args in enumerate(arguments)]
    return getattr(adapter, kind)(requests)


def test_texts_become_requests_as_lm_eval_says(model, log_p):
    adapter = LMEvalModel(*model, BYTES, batch_size=4)
    long = "0123456789" * 7
    pairs = [("A b ", "c"), ("", "abc"), ("  ", "a"), (long, "tail"), ("A b", " c")]
    found = ask(adapter, "loglikelihood", *pairs)
    tokens = [(b"A b", b" c"), ([256], b"abc"), ([256], b"  a"), (long.encode(), b"tail"), (b"A b", b" c")]
    for pair, answer in zip(tokens, found, strict=True):
        assert answer == (pytest.approx(log_p(*pair)[0], abs=TOLERANCE), log_p(*pair)[1])
    for context in ("a", ""):
        with pytest.raises(ValueError, match="continuation = '': expected a text that adds tokens"):
            ask(adapter, "loglikelihood", (context, ""))
    with pytest.raises(ValueError, match="continuation = '65 tokens': expected at most 64, the context"):
        ask(adapter, "loglikelihood", ("a", "b" * 65))


def test_rolling_windows(model, log_p):
    adapter = LMEvalModel(*model, BYTES, batch_size=4)
    text = [*b"abcdefghijklmnop" * 10]
    [found, empty, short] = ask(adapter, "loglikelihood_rolling", (bytes(text).decode(),), ("",), ("xyz",))
    # 160 tokens in windows of 64; the last 32 are read after as many that were scored before.
    expected = (
        log_p([256], text[:64])[0] + log_p(text[63:64], text[64:128])[0] + log_p(text[95:128], text[128:])[0]
    )
    assert found == pytest.approx(expected, abs=TOLERANCE)
    assert empty == 0
    assert short == pytest.approx(log_p([256], b"xyz")[0], abs=TOLERANCE)


def test_generation_does_not_depend_on_its_batch(model):
    settings = [{"until": ["\n"], "max_gen_toks": 8}, {"do_sample": True, "max_gen_toks": 8}]
    asked = [(text, option) for option in settings for text in ("", "some text", "x" * 100, "y")]
    answers = [ask(LMEvalModel(*model, BYTES, batch_size=size), "generate_until", *asked) for size in (1, 3)]
    assert answers[0] == answers[1]
    with pytest.raises(ValueError, match="max_gen_toks = 64: expected less than 64, the context"):
        ask(LMEvalModel(*model, BYTES), "generate_until", ("a", {"max_gen_toks": 64}))


def test_every_kind_of_task_by_hand(model, folder, log_p, only_ours):
    adapter = LMEvalModel(*model, BYTES, batch_size=4)
    manager = only_ours(include_path=str(folder / "tasks"))
    found = simple_evaluate(adapter, tasks=list(TASKS), task_manager=manager, bootstrap_iters=0)["results"]

    def scores(row):
        stripped = row["text"].rstrip(" ")
        moved = row["text"][len(stripped) :]
        return [log_p(stripped.encode(), (moved + choice).encode()) for choice in row["choices"]]

    every = [scores(row) for row in ROWS]
    labels = [row["label"] for row in ROWS]
    values = [np.array([value for value, _ in choices]) for choices in every]
    sizes = [np.array([*map(len, row["choices"])]) for row in ROWS]
    best = [value.argmax() for value in values]
    per_byte = [(value / size).argmax() for value, size in zip(values, sizes, strict=True)]
    assert found["facts"]["acc,none"] == np.mean(np.equal(best, labels))
    assert found["facts"]["acc_norm,none"] == np.mean(np.equal(per_byte, labels))
    right = [choices[label] for choices, label in zip(every, labels, strict=True)]
    assert math.log(found["last"]["perplexity,none"]) == pytest.approx(
        -np.mean([value for value, _ in right]), abs=TOLERANCE
    )
    assert found["last"]["acc,none"] == np.mean([greedy for _, greedy in right])
    texts = [row["text"] * 2 for row in ROWS]
    total = sum(ask(adapter, "loglikelihood_rolling", *((text,) for text in texts)))
    bits = -total / sum(map(len, texts)) / math.log(2)
    assert found["whole"]["bits_per_byte,none"] == pytest.approx(bits, abs=TOLERANCE)
    answers = ask(
        adapter, "generate_until", *((row["text"], TASKS["answers"]["generation_kwargs"]) for row in ROWS)
    )
    gold = [row["choices"][row["label"]] for row in ROWS]
    assert found["answers"]["exact_match,none"] == np.mean(np.equal(answers, gold))


def own_lines(text):
    """Without the bars that tqdm draws if it was imported before the command could turn them off."""
    return [line for line in text.splitlines() if line and "/s]" not in line]


def call(folder, *flags):
    common = ("--include", str(folder / "tasks"), "--checkpoint", str(folder / "model"), "--batch-size", "4")
    lm_eval_command.main([*common, *flags])


def test_the_command(folder, only_ours, tmp_path, capsys):
    result, samples = tmp_path / "result.json", tmp_path / "new" / "samples.jsonl"
    call(folder, "--tasks", "facts,last", "--limit", "3", "--json", str(result), "--samples", str(samples))
    content = json.loads(result.read_text())
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert sorted(row["task"] for row in rows) == ["facts"] * 3 + ["last"] * 3
    accuracy = np.mean([row["acc"] for row in rows if row["task"] == "facts"])
    assert content["results"]["facts"]["acc,none"] == pytest.approx(accuracy)
    assert content["n-samples"]["facts"] == {"original": 4, "effective": 3}
    assert content["results"]["last"]["perplexity_stderr,none"] > 0
    assert content["options"]["tasks"] == "facts,last"
    out, err = capsys.readouterr()
    assert "the first 3 examples of each task only" in out
    assert f"{content['results']['last']['perplexity,none']:.6g}"[:4] in out
    assert own_lines(err) == []


def test_conversations_and_made_data(folder, only_ours, tmp_path):
    """A chat template, a system message, other settings of generation, and metadata for a task's own data."""
    tasks, model = tmp_path / "tasks", tmp_path / "model"
    shutil.copytree(folder / "model", model)
    (model / "chat_template.jinja").write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<a>{% endif %}"
    )
    tasks.mkdir()
    (tasks / "made.py").write_text(
        "import datasets\n"
        "def rows(tokenizer, max_seq_lengths, **kwargs):\n"
        "    made = [{'text': f'{tokenizer} {n}', 'answer': 'x'} for n in max_seq_lengths]\n"
        "    return {'test': datasets.Dataset.from_list(made)}\n"
    )
    settings = {"until": ["\n"], "max_gen_toks": 8, "do_sample": False}
    task = {
        "task": "made",
        "output_type": "generate_until",
        "test_split": "test",
        "doc_to_text": "{{text}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": settings,
        "metric_list": [{"metric": "exact_match"}],
    }
    lines = json.dumps(task).removesuffix("}")
    (tasks / "made.yaml").write_text(f'{lines}, "custom_dataset": !function made.rows, "dataset_path": ""}}')
    samples = tmp_path / "samples.jsonl"

    def ask_made(*flags):
        common = ("--include", str(tasks), "--checkpoint", str(model), "--tasks", "made", "--context", "512")
        metadata = ("--metadata", '{"max_seq_lengths": [64, 128]}', "--samples", str(samples))
        lm_eval_command.main([*common, *metadata, *flags])
        rows = [json.loads(line) for line in samples.read_text().splitlines()]
        return [row["arguments"][0] for row in rows]

    plain = ask_made()
    assert [row[0] for row in plain] == [f"{model} 64", f"{model} 128"]
    chat = ask_made(
        "--apply-chat-template", "--system-instruction", "Be brief.", "--gen-kwargs", "max_gen_toks=3"
    )
    assert [row[0] for row in chat] == [f"<system>Be brief.<user>{model} {n}<a>" for n in (64, 128)]
    assert chat[0][1] == {**settings, "max_gen_toks": 3}
    (model / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="apply_chat_template = True: expected a chat template in"):
        ask_made("--apply-chat-template")


def test_a_token_across_the_cut(model):
    """It would take the whole continuation, which is then encoded alone."""
    tokenizer = FileTokenizer(merges().to_str())
    lm = LMEvalModel(*model, tokenizer)
    for context, continuation, expected in (
        ("a<", "/", "/"),
        ("a< ", "/", " /"),  # the space belongs to the continuation
        ("a <", "/a", "a"),  # as lm-eval cuts it
        ("a", "</", "</"),
    ):
        _, ids = lm._encode_pair(context, continuation)
        assert ids == tokenizer.encode(expected).tolist()


def test_a_suite(folder, only_ours, tmp_path, monkeypatch, capsys):
    """Tasks of the suite's names, made of our rows; all have two accuracies."""
    suite = lm_eval_command.SUITES["superglue"]
    metrics = {"f1": "acc_norm", "em": "acc"}
    columns = tuple(column._replace(metric=metrics.get(column.metric, "acc")) for column in suite.columns)
    monkeypatch.setitem(lm_eval_command.SUITES, "superglue", suite._replace(columns=columns))
    tasks, result = tmp_path / "tasks", tmp_path / "result.json"
    tasks.mkdir()
    source = json.loads((folder / "tasks" / "facts.yaml").read_text()) | {"fewshot_split": "validation"}
    for name in suite.tasks:
        (tasks / f"{name}.yaml").write_text(json.dumps(source | {"task": name}))
    flags = ("--suite", "superglue", "--num-fewshot", "1", "--context", "128", "--include", str(tasks))
    call(folder, *flags, "--limit", "2", "--json", str(result))
    content = json.loads(result.read_text())
    assert content["n-shot"]["boolq"] == 1
    assert content["columns"]["boolq"] == pytest.approx(100 * content["results"]["boolq"]["acc,none"])
    assert [row["shots"] for row in content["published"]] == [1, 1, 1]
    assert "47.20" in capsys.readouterr().out  # Based's average with one example


def test_an_interrupted_command_continues(folder, only_ours, tmp_path, monkeypatch, capsys):
    from based_jax.evals.lm_eval import model as lm_eval_model

    score, asked = lm_eval_model.score_continuations, []

    def stop_after(count):
        def run(model, params, requests, **options):
            asked.append(len(requests))
            for number, pair in enumerate(score(model, params, requests, **options)):
                if number == count:
                    raise KeyboardInterrupt
                yield pair

        monkeypatch.setattr(lm_eval_model, "score_continuations", run)

    flags = ("--tasks", "facts", "--cache", str(tmp_path / "cache"))
    stop_after(5)
    with pytest.raises(SystemExit) as ended:
        call(folder, *flags)
    assert ended.value.code == 130
    assert "interrupted; " in capsys.readouterr().err
    stop_after(100)
    call(folder, *flags, "--json", str(tmp_path / "cached.json"))
    assert asked == [9, 4]
    call(folder, *flags, "--context", "60")  # other answers
    assert asked == [9, 4, 9]
    call(folder, "--tasks", "facts", "--json", str(tmp_path / "fresh.json"))
    results = [json.loads((tmp_path / name).read_text())["results"] for name in ("cached.json", "fresh.json")]
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--tasks", "fact"), "tasks = 'fact': expected facts"),
        (("--tasks", "nothing"), "expected one that lm-eval or --include has"),
        (("--tasks", "broken"), "expected tasks whose data can be loaded and whose prompts can be made; "),
        (("--tasks", "facts", "--samples", "."), "samples = '.': expected a file that can be written"),
        (("--tasks", "beams"), "generation_kwargs = ['num_beams']: expected only until"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[1],
)
def test_errors_are_one_line(folder, only_ours, capsys, flags, message):
    source = json.loads((folder / "tasks" / "answers.yaml").read_text())
    beams = {"task": "beams", "generation_kwargs": {"num_beams": 4}}
    (folder / "tasks" / "beams.yaml").write_text(json.dumps(source | beams))
    broken = {"task": "broken", "doc_to_text": "{{absent}}"}
    (folder / "tasks" / "broken.yaml").write_text(json.dumps(source | broken))
    with pytest.raises(SystemExit) as ended:
        command.run(lm_eval_command.PROG, lambda: call(folder, *flags))
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert message in err
    assert len(own_lines(err)) == 1
    assert out == ""


@pytest.mark.slow
@pytest.mark.parametrize("starts", [False, True])
def test_lm_evals_own_backend_agrees(folder, only_ours, tmp_path, starts):
    """A Llama in the hub's format: the same samples and scores as those of lm-eval with transformers.

    `starts`: its tokenizer puts a token before each text.
    """
    backend = pytest.importorskip("lm_eval.models.huggingface", reason="needs pip install 'lm-eval[hf]'")
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    # Far larger weights than a trained model's, so that choices differ clearly.
    config = transformers.LlamaConfig(
        **sizes, vocab_size=258, max_position_embeddings=CONTEXT, initializer_range=0.3, eos_token_id=256
    )
    transformers.LlamaForCausalLM(config).eval().save_pretrained(tmp_path / "llama")
    file = byte_level()
    special = {"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}
    if starts:
        special["bos_token"] = "<s>"
        file.add_special_tokens(["<s>"])
        start = {"special_tokens": [("<s>", file.token_to_id("<s>"))]}
        file.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", "<s> $A $B", **start)
    transformers.PreTrainedTokenizerFast(tokenizer_object=file, **special).save_pretrained(tmp_path / "llama")

    theirs = backend.HFLM(
        str(tmp_path / "llama"), device="cpu", dtype="float32", batch_size=1, max_length=CONTEXT
    )
    ours = LMEvalModel(*load_pretrained(tmp_path / "llama"), FileTokenizer(file.to_str()), max_length=CONTEXT)
    manager = only_ours(include_path=str(folder / "tasks"))
    found = [
        simple_evaluate(each, tasks=list(TASKS), task_manager=manager, bootstrap_iters=0, log_samples=True)
        for each in (theirs, ours)
    ]
    for task in TASKS:
        wanted, scores = (each["results"][task] for each in found)
        numbers = {name: value for name, value in wanted.items() if isinstance(value, float)}
        assert numbers == pytest.approx({name: scores[name] for name in numbers}, rel=TOLERANCE)
        for row, other in zip(*(each["samples"][task] for each in found), strict=True):
            assert row["arguments"] == other["arguments"]
            expected, answers = (jax.tree.leaves(each["filtered_resps"]) for each in (row, other))
            assert answers == [
                pytest.approx(x, rel=TOLERANCE) if isinstance(x, float) else x for x in expected
            ]
