"""A tiny model and a tiny text, shared by the training tests."""

from pathlib import Path

import pytest

from based_jax.models import MixerSpec, ModelConfig


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
