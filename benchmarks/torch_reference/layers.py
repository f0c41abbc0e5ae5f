"""Norm, MLP and the mixers of Based and Transformer++; inputs and outputs are (B, N, D)."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

ROTARY_BASE = 10000.0


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class GatedMLP(nn.Module):
    """(a * silu(g)) W2 with a, g = split(x W1)."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.fc1 = nn.Linear(width, 2 * hidden, bias=False)
        self.fc2 = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        value, gate = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(value * F.silu(gate))


class _CausalConv(nn.Module):
    """A causal convolution per channel."""

    def __init__(self, channels: int, taps: int):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, taps, groups=channels, padding=taps - 1, bias=False)

    def forward(self, x):
        return self.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)


class GatedConv(nn.Module):
    """(silu(conv(u1)) * u2) W_out with u1, u2 = split(x W_in)."""

    def __init__(self, width: int, expand: int, taps: int):
        super().__init__()
        self.in_proj = nn.Linear(width, expand * width)
        self.conv = _CausalConv(expand * width // 2, taps)
        self.out_proj = nn.Linear(expand * width // 2, width)

    def forward(self, x):
        u1, u2 = self.in_proj(x).chunk(2, dim=-1)
        return self.out_proj(F.silu(self.conv(u1)) * u2)


class TaylorAttention(nn.Module):
    """Based's linear attention; `attend` is one of the functions below."""

    def __init__(self, width: int, heads: int, feature_dim: int, attend: Callable[..., torch.Tensor]):
        super().__init__()
        self.heads, self.attend = heads, attend
        self.proj_q = nn.Linear(width, heads * feature_dim, bias=False)
        self.proj_k = nn.Linear(width, heads * feature_dim, bias=False)
        self.proj_v = nn.Linear(width, width, bias=False)
        self.out_proj = nn.Linear(width, width, bias=False)

    def forward(self, x):
        q, k, v = (_split(map_(x), self.heads) for map_ in (self.proj_q, self.proj_k, self.proj_v))
        return self.out_proj(_join(self.attend(q, k, v)))


class Attention(nn.Module):
    """Softmax attention with rotary positions, over the whole past or over `left` keys and the own one."""

    def __init__(self, width: int, heads: int, rotary_fraction: float, left: int | None, bias: bool = False):
        super().__init__()
        self.heads, self.left = heads, left
        self.rotary_dim = int(rotary_fraction * width / heads)
        self.Wqkv = nn.Linear(width, 3 * width, bias=bias)
        self.out_proj = nn.Linear(width, width, bias=bias)

    def forward(self, x):
        q, k, v = (_split(part, self.heads) for part in self.Wqkv(x).chunk(3, dim=-1))
        if self.rotary_dim:
            q, k = rotary(q, self.rotary_dim), rotary(k, self.rotary_dim)
        if self.left is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = window_attention(q, k, v, self.left + 1)
        return self.out_proj(_join(y))


def rotary(x, dim: int):
    """Rotate halves of the first `dim` channels by position * base^(-2 i / dim)."""
    frequencies = ROTARY_BASE ** (-torch.arange(0, dim, 2, device=x.device) / dim)
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    one, two, rest = x.split((dim // 2, dim // 2, x.shape[-1] - dim), dim=-1)
    return torch.cat((one * cos - two * sin, one * sin + two * cos, rest), dim=-1)


def window_attention(q, k, v, window: int):
    """Causal softmax over the last `window` keys, (B, H, N, dim) each; N is a multiple of the window.

    Queries in blocks as long as the window see their own block of keys and the one before.
    """
    batch, heads, length, dim = q.shape
    blocks = length // window

    def split(x):
        return x.reshape(batch * heads, blocks, window, dim)

    def with_last(x):
        # Not `unfold`: for its views torch.compile 2.13 computes wrong gradients of the keys on CPUs.
        return torch.cat((F.pad(split(x), (0, 0, 0, 0, 1, 0))[:, :-1], split(x)), dim=-2)

    ahead = torch.arange(2 * window) - window - torch.arange(window)[:, None]  # key's position minus query's
    is_real = torch.arange(2 * window) + window * torch.arange(blocks)[:, None] >= window
    allowed = ((ahead <= 0) & (ahead > -window)) & is_real[:, None]
    y = F.scaled_dot_product_attention(split(q), with_last(k), with_last(v), attn_mask=allowed)
    return y.view(q.shape)


def _split(x, heads: int):
    """(B, N, H dim) to (B, H, N, dim)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _join(x):
    return x.transpose(1, 2).flatten(2)
