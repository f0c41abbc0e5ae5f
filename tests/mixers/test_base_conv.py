"""BaseConv: its long filters."""

from based_jax.testing import laws
from tests.mixers.built import runner, with_first_taps
from tests.tolerances import FLOAT32, assert_close


def test_a_filter_longer_than_the_text_gives_its_first_taps():
    long, short = (
        runner("base_conv", d_model=4, l_max=length, kernel_size=-1, implicit=False) for length in (40, 6)
    )
    x = laws.inputs(2, 6, 4, 0)
    assert_close(long(x)[0], with_first_taps(short, long)(x)[0], FLOAT32)
