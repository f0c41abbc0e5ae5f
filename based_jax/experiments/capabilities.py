"""Study which mixers learn MAD's tasks, joint recall, and the word problems of permutations."""

from based_jax.experiments.study import run
from based_jax.experiments.tasks import study_of_tasks

STUDY = study_of_tasks("capabilities")

if __name__ == "__main__":
    run(STUDY)
