"""The papers' evaluations, each a command: ``based-jax eval NAME``; and a model's recall card."""

from based_jax.evals.card.page import write_recall_card as write_recall_card
from based_jax.evals.card.recall_card import recall_card as recall_card
from based_jax.evals.label_scores import LabelScorer as LabelScorer
