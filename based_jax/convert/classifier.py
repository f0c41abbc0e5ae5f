"""Save and load sequence classifiers: a language model's directory with a head added.

config.json, model.safetensors     the language model, which `load_pretrained` can read
classifier.json                    {"version": 1, "classes": [names], "pooling": "mean" or "last"}
classifier.safetensors             the head: weight (classes, d_model) and bias (classes,), as torch has them
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
from flax import linen as nn

from based_jax.convert.model_card import ModelCard
from based_jax.convert.pretrained import load_pretrained, save_pretrained
from based_jax.convert.state_dict import read_state_dict, write_safetensors
from based_jax.files import read_object, write_json
from based_jax.models.classifier import POOLINGS, SequenceClassifier
from based_jax.models.language_model import LanguageModel
from based_jax.typing import Params
from based_jax.validate import expect, expect_choice

VERSION = 1
DESCRIPTION = "classifier.json"
HEAD = "classifier.safetensors"


def save_classifier(
    directory: str | os.PathLike[str], model: SequenceClassifier, params: Params, classes: tuple[str, ...]
) -> Path:
    """Write the files of a classifier, replacing files of the same names.

    Args:
        params: ``{"params": {"backbone": ..., "head": ...}}``.
        classes: names of the classes, one per logit.

    Raises:
        ValueError: parameters of another model, or another number of classes.
    """
    expect(len(classes) == model.num_classes, "classes", classes, f"{model.num_classes} names")
    target, plain = Path(directory), nn.meta.unbox(params)["params"]
    # The card describes the language model, as `load_pretrained` reads it, and must mention the head.
    loader = "based_jax.convert.classifier.load_classifier"
    card = ModelCard(training={"classifier": f"{len(classes)} classes, {model.pooling} pooling: {loader}"})
    save_pretrained(target, LanguageModel(model.config), {"params": plain["backbone"]}, card=card)
    head = plain["head"]
    tensors = {"weight": np.asarray(head["kernel"]).T, "bias": np.asarray(head["bias"])}
    write_safetensors(target / HEAD, tensors)
    description = {"version": VERSION, "classes": list(classes), "pooling": model.pooling}
    write_json(target / DESCRIPTION, description)
    return target


def load_classifier(
    directory: str | os.PathLike[str],
) -> tuple[SequenceClassifier, Params, tuple[str, ...]]:
    """Load a classifier, its parameters and its class names from files written by `save_classifier`.

    Raises:
        FileNotFoundError: not a classifier's directory.
        ValueError: an invalid file, or weights of other shapes.
    """
    path = Path(directory) / DESCRIPTION
    if not path.is_file():
        raise FileNotFoundError(f"{directory}: expected a classifier, but there is no {DESCRIPTION}")
    description = read_object(path)
    known = description.get("version") == VERSION
    expect(known, str(path), description, f"a classifier of version {VERSION}")
    names: Any = description.get("classes")
    pooling: Any = description.get("pooling")
    fits = isinstance(names, list) and len(names) >= 2 and all(isinstance(name, str) for name in names)
    expect(fits, f"{path}: classes", names, "at least two names")
    expect_choice(f"{path}: pooling", pooling, POOLINGS)
    body, params = load_pretrained(directory)
    classes = tuple(names)
    model = SequenceClassifier(body.config, len(classes), pooling)
    head = read_state_dict(Path(directory) / HEAD)
    shapes = {name: array.shape for name, array in head.items()}
    wanted = {"weight": (len(classes), body.config.embed_width), "bias": (len(classes),)}
    expect(shapes == wanted, str(Path(directory) / HEAD), shapes, f"{wanted}")
    ours = {"kernel": np.ascontiguousarray(head["weight"].T), "bias": head["bias"]}
    return model, {"params": {"backbone": params["params"], "head": ours}}, classes
