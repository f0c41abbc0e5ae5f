"""Check MQAR by attention, by algorithms and by filters made from the data."""

from collections.abc import Callable
from math import log2

import jax
import numpy as np

from based_jax.data.tasks.mqar import MQAR
from based_jax.data.tasks.task import IGNORE
from papers.check import Check, largest_difference
from papers.zoology.mqar import attention, dictionary, dyadic, top_shifts
from papers.zoology.mqar.induction_head import SCALE, accuracy
from papers.zoology.mqar.induction_model import language_model, sign_codes
from papers.zoology.mqar.triples import Triples, draw, draw_any, one_hot, one_hot_blocks

COUNT, TOKENS = 12, 16
"""Triples, and tokens of the vocabulary."""
INSTANCES = 5
SIZES = f"T = {COUNT}, c = {TOKENS}, {INSTANCES} random inputs"

Answer = Callable[[Triples], np.ndarray]


def checks(seed: int = 0) -> list[Check]:
    """Check Zoology, H.27, H.28, H.30 and H.38; the library's task."""
    rng = np.random.default_rng(seed)
    first = [two_layers_of_attention(rng), *dyadic_intervals(rng), filters_from_data(rng)]
    return [*first, *on_the_task(rng, seed)]


def two_layers_of_attention(rng: np.random.Generator) -> Check:
    """Check proposition H.27."""
    instances = [draw(rng, COUNT, TOKENS) for _ in range(INSTANCES)]
    layers = attention.layers(COUNT, TOKENS)
    return Check(
        statement="Attention without softmax solves MQAR",
        source="Zoology, proposition H.27",
        checked="one-hot answers against those looked up, earlier keys only",
        sizes=SIZES,
        error=worst(instances, lambda t: attention.solve(one_hot_blocks(t))[2::3, :TOKENS], one_hot_answers),
        layers=len(layers),
        layer_bound="2",
        parameters=sum(layer.parameters for layer in layers),
        parameter_bound=f"O(c^2): 54 c^2 = {54 * TOKENS**2:,}",
    )


def dyadic_intervals(rng: np.random.Generator) -> list[Check]:
    """Check algorithm 11 and proposition H.30."""
    count = 256
    triples = draw_any(rng, count, count // 2)
    answers, cost = dyadic.solve(triples)
    met = np.zeros((count, count))
    for meeting in dyadic.meetings(count):
        met[np.ix_(meeting.queries, meeting.keys)] += 1
    work, steps = count * log2(count) ** 2, log2(count) ** 2
    excess = max(0.0, (cost.sorting + cost.searching) / work - 1, cost.steps / steps - 1)
    return [
        Check(
            statement="The dictionary answers MQAR, one triple after the other",
            source="Zoology, proposition H.28",
            checked="wrong answers; the first of several keys counts",
            sizes=f"T = {count}",
            error=float(np.sum(dictionary.solve(triples) != triples.answers)),
        ),
        Check(
            statement="Sorting and searching in dyadic intervals solves MQAR",
            source="Zoology, algorithm 11",
            checked="wrong answers",
            sizes=f"T = {count}",
            error=float(np.sum(answers != triples.answers)),
        ),
        Check(
            statement="Dyadic intervals: each earlier key meets each query once",
            source="Zoology, proposition H.30",
            checked="how often key j meets query i against 1 for j < i",
            sizes=f"T = {count}",
            error=largest_difference(met, np.tri(count, k=-1)),
        ),
        Check(
            statement="... with T log^2 T comparisons, searched in log^2 T steps",
            source="Zoology, proposition H.30",
            checked=f"{cost.sorting + cost.searching:,} <= {work:,.0f}, {cost.steps} <= {steps:.0f}",
            sizes=f"T = {count}",
            error=excess,
        ),
    ]


def filters_from_data(rng: np.random.Generator) -> Check:
    """Check theorem H.38."""
    distances = [1, 3, 4]
    instances = [draw(rng, COUNT, TOKENS, distances) for _ in range(INSTANCES)]
    account = top_shifts.solver(3 * COUNT, TOKENS, 3 * np.array(distances) + 2).account
    blocks = len(distances)
    bound = 90 * blocks * 3 * COUNT * TOKENS + 45 * TOKENS**2
    return Check(
        statement="Filters with t shifts found in the data solve MQAR",
        source="Zoology, theorem H.38",
        checked="one stack per input against the answers looked up",
        sizes=f"{SIZES}, t = {blocks} distances",
        error=worst(instances, lambda t: top_shifts.solve(t, blocks)[2::3], one_hot_answers),
        layers=account.layers,
        layer_bound="O(1), whatever t is",
        parameters=account.parameters,
        parameter_bound=f"O(t N c): 90 t 3T c + 45 c^2 = {bound:,}",
    )


def on_the_task(rng: np.random.Generator, seed: int) -> list[Check]:
    """Check that an induction head solves the library's MQAR task."""
    task = MQAR(8192, 20, 64, 16, random_fill=False)
    segment = task.build(seed)
    inputs, labels = np.asarray(segment.inputs), np.asarray(segment.labels)
    width = 128
    model, params = language_model(sign_codes(rng, task.vocab_size, width // 2))
    answers = np.asarray(jax.jit(model.apply)(params, segment.inputs)[0].argmax(-1))
    sizes = f"N = {task.length}, {task.num_pairs} pairs, {task.vocab_size:,} tokens"
    return [
        Check(
            statement="A shift and an attention solve the task of the experiments",
            source="Zoology, proposition H.27 (on tokens)",
            checked="share of wrong labels, scores as they are and in a softmax",
            sizes=sizes,
            error=1 - min(accuracy(inputs, labels, scale) for scale in (None, SCALE)),
        ),
        Check(
            statement="... written into the library's language model",
            source="Zoology, proposition H.27 (ours)",
            checked="share of wrong labels, short convolution and attention",
            sizes=f"{sizes}, width {width}",
            error=float(np.mean((answers != labels)[labels != IGNORE])),
            layers=model.config.num_layers,
            layer_bound="2",
        ),
    ]


def one_hot_answers(triples: Triples) -> np.ndarray:
    """Return one-hot answers, (T, c), zeros if there is no answer."""
    return one_hot(triples.answers, triples.tokens)


def worst(instances: list[Triples], solve: Answer, expected: Answer) -> float:
    """Return the largest difference of answers over instances."""
    return max(largest_difference(solve(triples), expected(triples)) for triples in instances)
