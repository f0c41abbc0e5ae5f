"""What both forms of HyperAttention share: maps for all slots of a tuple, or one for each."""

from tests.mixers.built import parameter_count


def test_shared_maps_are_as_many_as_attentions():
    """4 D^2 whatever the order, and 2 n D^2 with a map per slot (table 3 of the paper: both of order D^2)."""
    assert parameter_count("attention", d_model=24) == 4 * 24**2
    for order in (2, 4):
        assert parameter_count("hyper_attention", d_model=24, order=order, num_heads=3) == 4 * 24**2
        assert parameter_count("hyper_attention", d_model=24, order=order, shared=False) == 2 * order * 24**2
        options = {"d_model": 24, "order": order, "num_heads": 3, "feature_dim": 8}
        assert parameter_count("linear_hyper_attention", **options) == 4 * 24**2
        assert parameter_count("linear_hyper_attention", **options, shared=False) == 2 * order * 24**2
