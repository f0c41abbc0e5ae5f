"""What tests of several ops' files are given."""

import pytest

from based_jax.ops.conv_basis import conv_attention_fft


@pytest.fixture
def by_fft(monkeypatch):
    """Whatever the lengths; drowned rows in blocks that the text does not fill."""
    monkeypatch.setattr(conv_attention_fft, "FFT_COST", 0.0)
    monkeypatch.setattr(conv_attention_fft, "BLOCK", 8)
