"""Make the training traces of H3 and Hyena from Zoology's modules: ``python -m tests.parity.make_traces h3``.

Needs torch, and a checkout of https://github.com/HazyResearch/zoology (commit d88d6f5) with its requirements
on PYTHONPATH.

    parameters: Zoology's initialisation, matrices times 3, rounded to bfloat16
    batches:    those of mqar_based_adamw.npz (vocabulary 48, 32 tokens, 8 rows)
    optimizer:  AdamW, decay 0.1 of every parameter, 0.003 in a cosine over 4 epochs of 5 steps
    `init:KEY`: mean and standard deviation of 64 initialisations
"""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from zoology.config import ModelConfig  # pyright: ignore[reportMissingImports]
from zoology.model import LanguageModel  # pyright: ignore[reportMissingImports]

HERE = Path(__file__).parent.parent / "fixtures" / "training"
WIDTH, VOCAB, EPOCHS, STEPS = 16, 48, 4, 20
LEARNING_RATE, DECAY = 3e-3, 0.1
DRAWS = 64
ARRAY_TOLERANCE = 1e-4
"""Of gradients and last parameters: programs round Fourier transforms differently, and Adam divides by the
gradients' size."""
# l_max is longer than the batches, as in the studies.
MIXERS: dict[str, dict[str, Any]] = {
    "h3": {"name": "zoology.mixers.h3.h3.H3", "kwargs": {"l_max": 64, "d_state": 4, "head_dim": 2}},
    "hyena": {"name": "zoology.mixers.hyena.Hyena", "kwargs": {"l_max": 64, "filter_order": 32}},
}


def build(mixer: dict[str, Any], seed: int) -> torch.nn.Module:
    """Return Zoology's two-layer model on the CPU."""
    torch.manual_seed(seed)
    config = ModelConfig(**model_config(mixer))
    with torch.device("cpu"):
        return LanguageModel(config)


def model_config(mixer: dict[str, Any]) -> dict[str, Any]:
    return {
        "d_model": WIDTH,
        "n_layers": 2,
        "max_position_embeddings": 0,
        "vocab_size": VOCAB,
        "embed_dropout": 0.0,
        "sequence_mixer": mixer,
        "state_mixer": {"name": "torch.nn.Identity", "kwargs": {}},
    }


def initial(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and constants that a trace starts from."""
    tensors = {}
    names = {name for name, _ in model.named_parameters()}
    for key, tensor in model.state_dict().items():
        is_matrix = key.endswith("weight") and tensor.ndim == 2
        scaled = tensor * 3 if is_matrix else tensor
        tensors[key] = scaled.bfloat16().float() if key in names or is_matrix else tensor
    return tensors


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    """Ignore the modules' casts to float32."""
    to = torch.Tensor.to

    def keep(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if torch.float32 in (*args, *kwargs.values()) and self.dtype == torch.float64:
            return self
        return to(self, *args, **kwargs)

    with mock.patch.object(torch.Tensor, "to", keep), mock.patch.object(torch.Tensor, "float", lambda x: x):
        yield


def train(model: torch.nn.Module, inputs: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Take the steps; return the curves, the first gradients and the last parameters."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS, eta_min=0.0)
    curves: dict[str, list[Any]] = {"loss": [], "grad_norm": [], "param_norms": [], "lr": []}
    first: dict[str, np.ndarray] = {}
    for step, (tokens, targets) in enumerate(zip(inputs, labels, strict=True)):
        optimizer.zero_grad()
        logits = model(torch.tensor(tokens).long(), return_embeddings=False)
        targets = torch.tensor(targets).long()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
        loss.backward()
        gradients = {name: p.grad.double().numpy() for name, p in model.named_parameters()}
        first = first or {name: gradient.copy() for name, gradient in gradients.items()}
        curves["loss"].append(loss.item())
        curves["grad_norm"].append(np.sqrt(sum(np.sum(np.square(g)) for g in gradients.values())))
        curves["lr"].append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        curves["param_norms"].append([p.detach().norm().item() for p in model.parameters()])
        if (step + 1) % (STEPS // EPOCHS) == 0:
            schedule.step()
    final = {name: p.detach().double().numpy() for name, p in model.named_parameters()}
    return {**{name: np.array(curve) for name, curve in curves.items()}, "grad1": first, "final": final}


def kept_bits(array: np.ndarray, bits: int = 15) -> np.ndarray:
    """Round to a mantissa that compresses."""
    mantissa, exponent = np.frexp(array)
    return np.ldexp(np.round(mantissa * 2**bits) / 2**bits, exponent).astype(np.float32)


def error(ours: np.ndarray, exact: np.ndarray) -> float:
    return float(np.abs(ours - exact).max() / max(np.abs(exact).max(), 1e-300))


def make(name: str) -> None:
    """Write one trace."""
    mixer = MIXERS[name]
    given = np.load(HERE / "mqar_based_adamw.npz")
    inputs, labels = given["in:inputs"], given["in:labels"]
    start = initial(build(mixer, 0))

    single = build(mixer, 0)
    single.load_state_dict(start)
    single = train(single, inputs, labels)
    double = build(mixer, 0).double()
    double.load_state_dict(start)
    with in_float64():
        double = train(double, inputs, labels)

    draws = [dict(build(mixer, 1 + seed).named_parameters()) for seed in range(DRAWS)]
    stacked = {key: torch.stack([draw[key].detach() for draw in draws]).double() for key in draws[0]}
    statistics = {key: [x.mean().item(), x.std(correction=0).item()] for key, x in stacked.items()}
    keys = list(double["final"])
    norms = [error(single["param_norms"][:, i], double["param_norms"][:, i]) for i in range(len(keys))]
    grads = [error(single[group][key], double[group][key]) for group in ("grad1", "final") for key in keys]
    meta = {
        "model": {key: value for key, value in model_config(mixer).items() if key != "sequence_mixer"},
        "optimizer": "torch AdamW betas (0.9,0.999) eps 1e-8, decoupled weight decay on EVERY parameter",
        "lr": LEARNING_RATE,
        "weight_decay": DECAY,
        "scheduler": f"CosineAnnealingLR T_max={EPOCHS}, stepped every {STEPS // EPOCHS} batches",
        "steps": STEPS,
        "param_names": keys,
        "loss": "mean cross entropy over labels != -100",
        "err32": {
            "loss": error(single["loss"], double["loss"]),
            "norms": max(norms),
            "grad": max(grads),
            "grad_norm64": error(single["grad_norm"], double["grad_norm"]),
        },
        "array_tolerance": ARRAY_TOLERANCE,
        "init_draws": DRAWS,
        "description": f"{STEPS} AdamW steps of Zoology's {name} model of Based's Figure 2, at width {WIDTH}",
    }
    meta["model"]["mixer"] = mixer
    print(name, meta["err32"], double["loss"])
    arrays = {f"param:{key}": tensor.numpy() for key, tensor in start.items()}
    arrays |= {"in:inputs": inputs, "in:labels": labels, "out:lr": double["lr"]}
    arrays |= {"out:loss32": single["loss"], "out:loss64": double["loss"]}
    arrays |= {"out:grad_norm64": double["grad_norm"], "out:param_norms64": double["param_norms"]}
    arrays |= {
        f"{group}:{key}": kept_bits(double[group][key]) for group in ("grad1", "final") for key in keys
    }
    arrays |= {f"init:{key}": np.array(value) for key, value in statistics.items()}
    np.savez_compressed(HERE / f"mqar_{name}_adamw.npz", meta=json.dumps(meta), **arrays)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        make(name)
