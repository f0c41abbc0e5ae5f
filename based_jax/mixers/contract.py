"""What a sequence mixer is: the base class of all mixers, and the linear map that they are made of.

A mixer is the layer of a language model that passes information between tokens, such as attention, a
recurrence or a convolution. (The MLPs and norms around it treat each token alone.) It maps one vector per
token to one vector per token, x of shape (batch, length, d_model) to y of the same shape:

    y, state = mixer(x, state=None, *, segment_ids=None, positions=None, mask=None, tokens=None)
    state = mixer.init_state(batch_size, max_length=None, dtype=None)

The state is what a later call needs to know about earlier tokens: running sums, or a cache of keys and
values. The same call serves training (state None), reading a prompt, at once or in chunks, and decoding (one
token per call). A subclass writes `mix(x, state, context)`: its inputs are checked, and `context` holds the
other arguments. `based_jax.testing.check_mixer` tests what every mixer guarantees, such as that cutting a
sequence into calls changes no output.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, cast

import jax.numpy as jnp
from flax import linen as nn
from jax import export

from based_jax import compat
from based_jax.fields import AtLeastZero, Dtype, Size, expect_fields
from based_jax.mixers.initializers import named, normal, uniform, zeros
from based_jax.mixers.mixer_options import expect_valid, option_names, with_inherited
from based_jax.mixers.module import Context, Module, find_stream
from based_jax.ops.core import nan_isolation
from based_jax.ops.core.op import op
from based_jax.ops.core.padding import Shift, aligned, may_precede
from based_jax.ops.core.products import ACTIVATIONS, PendingNorm, gated_product, product, row_products
from based_jax.ops.core.stream import advance
from based_jax.registry import Registry
from based_jax.typing import Array, Bool, Float, Int, Mask, Positions, SegmentIds, State
from based_jax.validate import expect_array, expect_divisible, expect_integer


class Mixer(Module):
    """Base of all sequence mixers; subclasses add their options as fields.

    Attributes:
        d_model: width of the input and output.
        dtype: dtype of the computation; parameters are float32.
        init_std: standard deviation of the projections' normal initialisation (Based's code: 0.02).
        out_init_std: the same for the output projection; None takes `init_std`.

    Raises:
        ValueError: a value of another type or outside the range of its annotation (`based_jax.fields`).
    """

    d_model: Size
    dtype: Dtype = jnp.float32
    init_std: AtLeastZero = 0.02
    out_init_std: AtLeastZero | None = None

    causal: ClassVar[bool] = True
    """outputs do not depend on later inputs; the default, if an option decides it"""
    stateful: ClassVar[bool] = True
    """can continue from a state"""
    packing: ClassVar[bool] = True
    """supports segment_ids: documents packed into one row"""
    is_pure: ClassVar[bool] = True
    """a function of parameters and inputs alone: no noise in training, no loss of its own"""
    wants_tokens: ClassVar[bool] = False
    """reads the ids of its tokens, `context.tokens`"""
    projects_input: ClassVar[bool] = False
    """`mix` reads only the shape of x and what `project` and `Projection` make of it, a `PendingNorm`, too"""

    def __init_subclass__(cls, **options: Any) -> None:
        call = cls.__dict__.get("__call__")  # that of `nn.remat(cls)` and Flax's other transforms wraps ours
        if call is not None and getattr(call, "__wrapped__", None) is not super(cls, cls).__call__:
            raise TypeError(f"{cls.__name__} defines __call__: expected mix(self, x, state, context)")
        for name, method in cls.__dict__.items():
            if hasattr(getattr(super(cls, cls), name, None), "nowrap"):
                nn.nowrap(method)  # so that overrides do not have to be decorated again
        super().__init_subclass__(**options)
        cls.__doc__ = with_inherited(cls)  # for help()

    def __post_init__(self) -> None:
        expect_valid(self)
        for name in option_names(type(self)):
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(cast(list[Any], value)))  # so that it can be hashed
        super().__post_init__()

    def __call__(
        self,
        x: Float[Array, "B N D"],
        state: State | None = None,
        *,
        segment_ids: SegmentIds | None = None,
        positions: Positions | None = None,
        mask: Mask | None = None,
        tokens: Int[Array, "B N"] | None = None,
        are_numbers: Bool[Array, "B N"] | None = None,
        apart: bool = False,
        **options: Any,
    ) -> tuple[Any, State | None]:
        """Mix tokens along the length.

        Args:
            x: inputs.
            state: None for a plain parallel pass; else continue from it.
            segment_ids: documents packed into one row; tokens depend on their own document only.
            positions: for rotary embeddings; default: counted from the start of each segment.
            mask: True for real tokens, which are one run in each row, with padding before, after or around
                it. Padding changes neither the outputs of real tokens nor the state.
            tokens: ids, for mixers with `wants_tokens`.
            are_numbers: whether each token of x is a number; x has zeros at the others. Default: x is
                searched.
            apart: return (y, broken, bias) in place of y: y without NaN, booleans (B, N) of where it would
                be or None, and what is to be added before that, (D,), or None. With a `PendingNorm` the
                booleans leave out tokens that are no numbers themselves: its sum is NaN there.
            options: further arguments of the mixer's own `mix`.

        Returns:
            y: (B, N, D) in `dtype`, and the state after the last real token (None if `state` was None).
            Outputs at tokens that are NaN or infinite, and at those that depend on them, are NaN: later
            tokens of the document, in this call and in the next ones, or all its tokens without causality.

        Raises:
            TypeError, ValueError: an argument of the wrong shape or dtype.
        """
        expect_array("x", x, ("B", "N", self.d_model), "floating")
        if mask is not None and may_precede(mask):
            shift = Shift(mask, x)
            given = {"segment_ids": segment_ids, "positions": positions, "mask": mask, "tokens": tokens}
            given = shift.left({**given, "are_numbers": are_numbers})
            with aligned():
                y, state = self(shift.left(x), state, apart=apart, **given, **options)
            return shift.back(y), state
        norm = x if isinstance(x, PendingNorm) else None
        x = jnp.asarray(x, self.dtype) if norm is None else norm.astype(self.dtype)
        before = find_stream(state)
        token_positions, stream = advance(before, x.shape[0], x.shape[1], segment_ids, mask)
        context = Context(
            token_positions,
            stream,
            segment_ids=None if segment_ids is None else jnp.asarray(segment_ids),
            positions=token_positions.positions if positions is None else positions,
            mask=None if mask is None else jnp.asarray(mask),
            tokens=tokens,
            has_state=state is not None,
            has_positions=positions is not None,
            apart=apart,
        )
        if are_numbers is None and norm is None:
            are_numbers = nan_isolation.is_number(x).all(axis=-1)
            x = nan_isolation.numbers(x, context.mask)
        elif context.mask is not None:
            x = jnp.where(context.mask[..., None], x, 0)
        mixed: Any
        mixed, after = self.mix(x, state, context, **options)
        bad = ~cast(Array, are_numbers if norm is None else norm.are_numbers)
        broken, still_broken = nan_isolation.broken_tokens(bad, token_positions, before, stream, self.causal)
        if apart:
            if norm is not None:  # its sum is NaN already where it is no number
                broken = None if before is None else nan_isolation.broken_before(token_positions, before)
            with_bias: tuple[Any, Any] = cast(Any, mixed) if isinstance(mixed, tuple) else (mixed, None)
            y = with_bias[0], broken, with_bias[1]
        else:
            y = nan_isolation.nan_unless(~broken[..., None], mixed)
        return y, None if state is None else nan_isolation.with_broken(after, still_broken)

    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Any, State]:
        """Compute the outputs and the next state; what every subclass defines.

        Args:
            x: inputs in `dtype`, with zeros for padding and for tokens that are NaN or infinite.
            state: None in a plain parallel pass, where the returned state is ignored.
            context: of this call; `context.run` calls an op on its tokens.

        Returns:
            y: (B, N, D) in `dtype`, or see `context.apart`; and the state after the last real token.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define mix")

    @nn.nowrap
    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """Run as one compiled program outside `jit`, unless a caller selects or intercepts methods."""
        is_plain = "method" in kwargs or "capture_intermediates" in kwargs or compat.is_intercepted()
        return super()._apply(*args, **kwargs) if is_plain else _apply(self, *args, **kwargs)

    @nn.nowrap
    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        """Return the state before the first token; needs no parameters.

        Args:
            batch_size: rows; may be symbolic (`jax.export`).
            max_length: tokens that a row will ever have; only mixers whose state grows need it.
            dtype: of cached activations; default the computation's. Running sums are at least float32.

        Raises:
            ValueError: an argument of another type or below 1, or max_length missing where it is needed.
        """
        if not export.is_symbolic_dim(cast(Any, batch_size)):
            expect_integer("batch_size", batch_size, 1)
        if max_length is not None:
            expect_integer("max_length", max_length, 1)
        dtype = self.dtype if dtype is None else dtype
        expect_fields(type(self), {"dtype": dtype})
        return self.empty_state(batch_size, max_length, jnp.dtype(dtype))

    @nn.nowrap
    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        """Return the state of `init_state`, given the resolved dtype; defined by subclasses."""
        raise NotImplementedError(f"{type(self).__name__} does not define empty_state")

    @nn.nowrap
    def state_size(self, length: int) -> int:
        """Return the number of floats kept per sequence after `length` tokens, by the papers' formulas."""
        raise NotImplementedError(f"{type(self).__name__} does not define state_size")

    @property
    def wide(self) -> Any:
        """Dtype of sums and states: at least float32."""
        return jnp.promote_types(self.dtype, jnp.float32)

    @property
    def out_std(self) -> float:
        """Initial standard deviation of the output projection."""
        return self.init_std if self.out_init_std is None else self.out_init_std

    @nn.nowrap
    def linear(self, features: int | tuple[int, ...], *axes: str | None, **options: Any) -> "Projection":
        """Return a linear map with this mixer's dtype and initial values; see `Projection`."""
        features = features if isinstance(features, tuple) else (features,)
        options = {"dtype": self.dtype, "init_std": self.init_std, **options}
        return Projection(features, axes, **options)

    @nn.nowrap
    def to_heads(self, heads: int, width: int, **options: Any) -> "Projection":
        """Return a linear map from the input into heads."""
        return self.linear((heads, width), "embed", "heads", "head_dim", **options)

    @nn.nowrap
    def to_output(self, *axes: str, **options: Any) -> "Projection":
        """Return the output projection, from axes of these names."""
        return self.linear(self.d_model, *axes, "embed", **{"init_std": self.out_std, **options})

    @nn.nowrap
    def conv_params(
        self, size: int, channels: int, axis: str, bias: bool = True, prefix: str = "conv_"
    ) -> tuple[Array, Array | None]:
        """Return the taps (size, channels) of a depthwise convolution and its bias (channels,), or None."""
        init = uniform(size**-0.5)
        kernel = self.param(f"{prefix}kernel", named(init, None, axis), (size, channels))
        return kernel, self.param(f"{prefix}bias", named(init, axis), (channels,)) if bias else None


@op()
def _apply(mixer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return nn.Module.apply(mixer, *args, **kwargs)


def _accept(name: str, mixer: Any) -> type[Mixer]:
    if not (isinstance(mixer, type) and issubclass(mixer, Mixer)):
        raise TypeError(f"mixer {name!r} = {mixer!r}: expected a subclass of based_jax.mixers.Mixer")
    return mixer


MIXERS: Registry[type[Mixer]] = Registry("mixer", "based_jax.mixers", _accept)


M = TypeVar("M", bound=type[Mixer])


def register(name: str) -> Callable[[M], M]:
    """Return a class decorator that makes a mixer available by name.

    The name then works in `make`, `ModelConfig`, checkpoints and the `--mixer` of commands. A notebook may
    register a class again after changing it. `based_jax.testing.check_mixer` tests whether the class
    satisfies the contract.

    Args:
        name: lower-case letters, digits and underscores, beginning with a letter.

    Raises:
        TypeError: the class is not a subclass of `Mixer`.
        ValueError: a name of another form, or one already taken by another class.
    """
    return MIXERS.register(name)


class Projection(nn.Module):
    """A linear map over the last axes, whose kernel keeps its axes apart so that each can be sharded.

    Attributes:
        features: sizes of the new axes.
        axes: logical names of the kernel's axes, those of the contracted inputs first.
        bias: add a bias (initialised to zero).
        gate: None, or the activation of a gate: of two new axes the first, of size 2, has values and gates,
            and the result is their product, values * gate(gates).
    """

    features: tuple[int, ...]
    axes: tuple[str | None, ...]
    bias: bool = False
    dtype: Any = jnp.float32
    init_std: float = 0.02
    gate: str | None = None

    @nn.compact
    def __call__(self, x: Array, apart: bool = False, into: Callable[..., Any] | None = None) -> Any:
        """Map the last axes of x, (..., *contracted), to new ones: return (..., *features).

        With `apart` return that without the bias, and the bias or None. With `into` return what this function
        makes of the rows (..., K), the matrix (K, columns) and the bias (columns,) or None.
        """
        inputs = len(self.axes) - len(self.features)
        lead, contracted = x.shape[:-inputs], x.shape[-inputs:]
        shape = (*contracted, *self.features)
        kernel = self.param("kernel", named(normal(self.init_std), *self.axes), shape)
        fan_in = math.prod(contracted)
        rows, matrix = x if inputs == 1 else x.reshape(*lead, fan_in), kernel.reshape(fan_in, -1)
        rows, matrix = rows.astype(self.dtype), matrix.astype(self.dtype)
        if self.gate is not None and not self.bias:
            return gated_product(rows, matrix, self.gate)
        bias = self.param("bias", zeros(*self.axes[inputs:]), self.features) if self.bias else None
        added = None if apart or bias is None else bias.reshape(-1)
        if into is not None:
            return into(rows, matrix, added)
        y = product(rows, matrix, added).reshape(*lead, *self.features)
        if apart:
            return y, bias
        return y if self.gate is None else y[..., 0, :] * ACTIVATIONS[self.gate](y[..., 1, :])


def project(x: Float[Array, "B N D"], *maps: Projection) -> tuple[Array, ...]:
    """Apply bound linear maps to the same inputs; to a single row on a GPU in one kernel launch."""
    found, is_row = None, math.prod(x.shape[:-1]) == 1
    if is_row and not any(each.bias or each.is_initializing() for each in maps):
        kernels = [nn.meta.unbox(each.get_variable("params", "kernel")) for each in maps]
        found = row_products(x, *(kernel.reshape(x.shape[-1], -1).astype(x.dtype) for kernel in kernels))
    if found is None:
        return tuple(each(x) for each in maps)
    pairs = zip(found, maps, strict=True)
    return tuple(y.reshape(*x.shape[:-1], *each.features) for y, each in pairs)


def default_heads(d_model: int) -> int:
    """Return a number of heads of about 64 channels: the largest up to d_model / 64 that divides d_model."""
    return next(heads for heads in range(max(d_model // 64, 1), 0, -1) if d_model % heads == 0)


def head_layout(d_model: int, num_heads: int | None, num_kv_heads: int | None = None) -> tuple[int, int, int]:
    """Resolve (heads, key/value heads, channels per head) and check that they divide."""
    heads = default_heads(d_model) if num_heads is None else num_heads
    expect_divisible("d_model", d_model, "num_heads", heads)
    kv_heads = heads if num_kv_heads is None else num_kv_heads
    expect_divisible("num_heads", heads, "num_kv_heads", kv_heads)
    return heads, kv_heads, d_model // heads
