"""Nystrom attention: the landmarks' chunks."""

from based_jax import mixers


def test_a_landmark_stands_for_a_chunk_of_the_longest_row():
    assert mixers.make("nystrom", d_model=4, num_landmarks=16).tokens_per_landmark == 64
    assert mixers.make("nystrom", d_model=4, num_landmarks=100, l_max=64).tokens_per_landmark == 1
    assert mixers.make("nystrom", d_model=4, num_landmarks=5, l_max=13).tokens_per_landmark == 3
