"""Make the jobs of a line of a figure from the name of a mixer, or from the path of anybody's module."""

import functools
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import jax

from based_jax.experiments.job import J, Job
from based_jax.mixers.registry import class_of, expect_options
from based_jax.models.backbones import ALIASES
from based_jax.testing import check_mixer
from based_jax.training.named_options import parse_mixer, split_mixers


def families_of(jobs: Iterable[Job]) -> dict[str, str]:
    """Return mixer -> the first family whose last layer it is."""
    families: dict[str, str] = {}
    for job in jobs:
        families.setdefault(split_mixers("layers", job.model)[-1].partition(":")[0], job.family)
    return families


def mixer_jobs(
    argument: str, texts: Iterable[str], grid: Sequence[J], like: str, families: Mapping[str, str]
) -> list[J]:
    """Return the jobs of a grid that train the mixer `like`, once for each of these mixers instead.

    Args:
        texts: mixers with options as `parse_mixer` reads them; those of one name are one line.
        families: name of a mixer -> its line in the figure; of others the name is the line.

    Raises:
        ValueError: an unknown mixer or option, or a module that has no such mixer; it names `argument`.
    """
    found: dict[str, J] = {}
    for text in texts:
        mixer, options = parse_mixer(argument, text)
        expect_options(ALIASES.get(mixer, mixer), options)
        family, more = families.get(mixer, mixer), [f"{name} {value}" for name, value in options.items()]
        for job in grid:
            layers = split_mixers("layers", job.model)
            if like in layers:
                model = ",".join(text.strip() if layer == like else layer for layer in layers)
                setting = ", ".join([job.setting, *more])
                added = replace(job, family=family, setting=setting, model=model)
                found[added.name] = added
    return list(found.values())


def expect_contract(jobs: Iterable[Job]) -> None:
    """Check the laws of the mixers of other packages among the jobs' layers, at their first job's width.

    ValueError: a mixer that breaks a law, which the message names, or that `check_mixer` does not take.
    """
    widths: dict[str, int] = {}
    for job in jobs:
        for layer in split_mixers("layers", job.model):
            widths.setdefault(layer, job.flags.get("d_model", 64))
    for layer, width in widths.items():
        _expect_laws(layer, width)


@functools.cache
def _expect_laws(layer: str, d_model: int) -> None:
    name, options = parse_mixer("mixer", layer)
    mixer = class_of(ALIASES.get(name, name))
    if mixer.__module__.startswith("based_jax."):
        return
    print(f"checking the laws of {layer}, which takes seconds", file=sys.stderr)
    jax.config.update("jax_platforms", "cpu")  # the trainers use the accelerators
    try:
        check_mixer(mixer, d_model=d_model, **options)
    except AssertionError as error:
        raise ValueError(" ".join(str(error).split())[:300]) from error
