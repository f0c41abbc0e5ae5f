"""A tiny model and a tiny text, shared by the training tests."""

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from based_jax.models import MixerSpec, ModelConfig
from based_jax.training.commands import classify, linearize, lm
from based_jax.training.optimizer import OptimizerConfig


@pytest.fixture(scope="session", autouse=True)
def traced_once() -> Iterator[None]:
    """Runs of the same settings share their programs: tracing these anew takes most of a run's time."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("learning_rate_schedule", "make_optimizer", "build_programs"):
            once = functools.cache(getattr(lm, name))
            for command in (lm, classify, linearize):
                patch.setattr(command, name, once)
        yield


@pytest.fixture(scope="session")
def tiny_config() -> ModelConfig:
    return ModelConfig(
        vocab_size=257,
        d_model=16,
        schedule="CLS",
        mixers={
            "C": MixerSpec("gated_conv"),
            "L": MixerSpec("linear_attention", {"num_heads": 2, "feature_dim": 4}),
            "S": MixerSpec("sliding_window", {"num_heads": 2, "left": 7}),
        },
        mlp_hidden=32,
        max_length=32,
    )


@pytest.fixture(scope="session")
def tiny_preset(tiny_config: ModelConfig, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("preset") / "tiny.json"
    path.write_text(tiny_config.to_json())
    return str(path)


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with 40 documents of predictable text."""
    directory = tmp_path_factory.mktemp("text")
    for number in range(40):
        lines = [f"def f{number}_{line}(x):\n    return x + {line}\n" for line in range(number % 7 + 3)]
        (directory / f"{number:02d}.py").write_text("\n".join(lines))
    return directory


@pytest.fixture(scope="session")
def settings(tiny_preset, text):
    return {
        "preset": tiny_preset,
        "data": str(text),
        "steps": 24,
        "batch_size": 4,
        "held_out": 0.2,
        "log_every": 1,
        "eval_every": 12,
        "checkpoint_every": 5,
        "peak_tflops": 1e-3,
        "optimizer": OptimizerConfig(learning_rate=1e-2, warmup=0.1),
    }


@pytest.fixture(scope="session")
def one_layer(settings, tiny_config, tmp_path_factory):
    """The settings of a model that compiles quickly."""
    path = tmp_path_factory.mktemp("one") / "layer.json"
    path.write_text(tiny_config.replace(schedule="L").to_json())
    return {**settings, "preset": str(path)}


@pytest.fixture(scope="session")
def finished(one_layer, tmp_path_factory) -> tuple[Path, lm.Run]:
    """A run that nothing interrupted, and its directory, which no test changes."""
    workdir = tmp_path_factory.mktemp("finished")
    return workdir, lm.train(lm.LMConfig(workdir=workdir, **one_layer))
