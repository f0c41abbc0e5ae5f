"""Choose the implementation of an op when a program is lowered, unless the caller names one.

    jax.jit(f).trace(x).lower(lowering_platforms=("cuda",))      on a CPU: the GPU's kernels
    jax.export.export(jax.jit(f), platforms=("cpu", "cuda"))(x)  each platform has its own form

`jit` traces before it knows the platform. So a traced op is one equation, `PRIMITIVE`, which holds the
program for the platform of this process. Lowering for that platform inlines it: nothing is traced twice, and
the program is the same as without the primitive. Lowering for another platform traces the op again for it.

There are two exceptions. A derivative keeps the program of this process's platform: the residuals that its
forward pass stores differ between implementations and are part of the trace. And if the caller has declared a
platform (`lowering_for`), or arrays or a mesh have devices, the op is traced for that platform. Exported
programs have no kernels unless the platform was declared: `jax.export` refuses these calls.
"""

import contextlib
import contextvars
import copy
import functools
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar, cast

import jax
from jax import lax
from jax.core import Tracer
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

import pallas_kernels
from based_jax import compat
from based_jax.ops.core import context_parallel, dispatch
from based_jax.ops.core.explicit_mesh import explicit_mesh
from based_jax.validate import expect, expect_choice

F = TypeVar("F", bound=Callable[..., Any])

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
"""Platforms that JAX lowers for, by its names."""

ANY_GPU = "NVIDIA A10"
"""GPU assumed if a program is lowered on a machine without one: it has the least shared memory of those that
run the kernels, and no Hopper-only features."""


@contextlib.contextmanager
def lowering_for(*platforms: str, device_kind: str | None = None) -> Generator[None]:
    """Trace ops for these platforms instead of this process's; also training steps and exported kernels.

    Use it around the tracing. Programs that `jit` has traced outside are not reused inside. Call only
    `jax.jit(f).trace(...)` and `jax.export` inside: other calls would run programs for another platform here.

    Args:
        platforms: "cpu", "cuda", "rocm" or "tpu". For several, ops pick what runs on all of them.
        device_kind: with "cuda" alone, the GPU to choose kernels and block sizes for, such as "NVIDIA H100";
            None for this process's GPU or, without one, any that the kernels support.

    Raises:
        ValueError: no platform or an unknown one; a `device_kind` for anything but "cuda".
    """
    expect(bool(platforms), "platforms", platforms, f"one or more of {', '.join(PLATFORMS)}")
    for platform in platforms:
        expect_choice("platforms", platform, PLATFORMS)
    is_gpu = platforms == ("cuda",)
    expect(is_gpu or device_kind is None, "device_kind", device_kind, "None unless platforms = ('cuda',)")
    with _tracing_for("gpu" if is_gpu else platforms[0] if len(platforms) == 1 else "any", device_kind):
        yield


@contextlib.contextmanager
def _tracing_for(platform: str, device_kind: str | None = None) -> Generator[None]:
    """Declare the platform; an absent GPU needs a name."""
    absent = platform == "gpu" and (device_kind is not None or dispatch.platform(()) != "gpu")
    gpu = pallas_kernels.lowering_for(device_kind or ANY_GPU) if absent else contextlib.nullcontext()
    with dispatch.on_platform(platform), gpu:
        yield


def by_platform(op: F) -> F:
    """Decorate an op whose body calls `dispatch` for its platform; see the module."""

    @functools.wraps(op)
    def call(*args: Any, **options: Any) -> Any:
        leaves, tree = cast("tuple[list[Any], Any]", jax.tree.flatten((args, options)))
        is_array = [isinstance(leaf, jax.Array) for leaf in leaves]
        arrays = [leaf for leaf, yes in zip(leaves, is_array, strict=True) if yes]
        if not _is_open(arrays):
            return op(*args, **options)
        results: list[Any] = []
        others = [None if yes else leaf for leaf, yes in zip(leaves, is_array, strict=True)]  # no tracers

        def run(*arrays: jax.Array) -> Any:
            rest = iter(arrays)
            merged = [next(rest) if yes else leaf for leaf, yes in zip(others, is_array, strict=True)]
            args, options = jax.tree.unflatten(tree, merged)
            found, structure = cast("tuple[list[Any], Any]", jax.tree.flatten(op(*args, **options)))
            results[:] = [structure]
            return found

        here = jax.make_jaxpr(run)(*arrays)
        if any(isinstance(const, Tracer) for const in here.consts):  # of a function among the options
            return op(*args, **options)
        flat = PRIMITIVE.bind(*arrays, here=here, elsewhere=_Elsewhere(run, arrays))
        return jax.tree.unflatten(results[0], flat)

    return call  # pyright: ignore[reportReturnType]


def _is_open(arrays: Sequence[Any]) -> bool:
    """Return whether lowering decides the platform of a call: it is traced, and no platform is declared."""
    if not compat.is_recorded_as_is() or dispatch.is_for_tests() or context_parallel.is_active():
        return False
    known = dispatch.declared_platform() is not None or any(dispatch.is_placed(x) for x in arrays)
    return not known and explicit_mesh(arrays) is None


def _function_of(program: Any) -> Callable[..., list[Any]]:
    return cast(Any, jaxpr_as_fun)(program)


class _Elsewhere:
    """A call's programs for platforms other than this process's, each traced on request."""

    def __init__(self, function: Callable[..., Any], arrays: Sequence[Any]) -> None:
        self.function, self.types = function, [jax.typeof(x) for x in arrays]
        self.here = dispatch.platform(())
        self.variables, self.settings = contextvars.copy_context(), compat.numeric_settings()
        self.programs: dict[str, Any] = {}

    def batched(self, axes: Any, arrays: Sequence[Any]) -> "_Elsewhere":
        """Return the programs of the same call under `vmap`."""
        other = copy.copy(self)
        other.function, other.types = jax.vmap(self.function, axes), [jax.typeof(x) for x in arrays]
        other.programs = {}
        return other

    def program(self, platform: str) -> Any:
        """Return the jaxpr for a platform by its name in `dispatch`."""
        if platform not in self.programs:
            self.programs[platform] = self.variables.copy().run(self._trace, platform)
        return self.programs[platform]

    def _trace(self, platform: str) -> Any:
        with self.settings(), _tracing_for(platform):
            return jax.make_jaxpr(self.function)(*self.types)


PRIMITIVE: Any = Primitive("implementation_by_platform")
"""Parameters: `here`, the jaxpr for this process's platform, and `elsewhere`, which traces the others."""

PRIMITIVE.multiple_results = True


@PRIMITIVE.def_impl
def _run(*arrays: Any, here: Any, elsewhere: _Elsewhere) -> list[Any]:
    return _function_of(here)(*arrays)


@PRIMITIVE.def_abstract_eval
def _result_types(*types: Any, here: Any, elsewhere: _Elsewhere) -> list[Any]:
    return list(here.out_avals)


def _differentiate(primals: Any, tangents: Any, *, here: Any, elsewhere: _Elsewhere) -> Any:
    moving = [type(tangent) is not ad.Zero for tangent in tangents]

    def run(*inputs: Any) -> list[Any]:
        rest = iter(inputs)
        return _function_of(here)(*(next(rest) if yes else x for x, yes in zip(primals, moving, strict=True)))

    def chosen(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(value for value, yes in zip(values, moving, strict=True) if yes)

    return jax.jvp(run, chosen(primals), chosen(tangents))


def _batch(arrays: Any, axes: Any, *, here: Any, elsewhere: _Elsewhere) -> Any:
    here = jax.make_jaxpr(jax.vmap(_function_of(here), axes))(*arrays)
    flat = PRIMITIVE.bind(*arrays, here=here, elsewhere=elsewhere.batched(axes, arrays))
    return flat, [0] * len(flat)


def _inlined(function: Callable[..., Any], context: Any, arrays: Sequence[Any]) -> Any:
    return cast(Any, mlir.lower_fun)(function, multiple_results=True)(context, *arrays)


def _lower(platform: str, context: Any, *arrays: Any, here: Any, elsewhere: _Elsewhere) -> Any:
    """Inline the program for a platform."""
    if platform == "gpu" and context.module_context.lowering_parameters.for_export:
        platform = "any"
    if platform == elsewhere.here:
        return _inlined(_function_of(here), context, arrays)
    program = elsewhere.program(platform)

    def run(*arrays: Any) -> list[Any]:
        found = _function_of(program)(*arrays)
        # Kernels keep the dtype of a state, other implementations return float32.
        return [lax.convert_element_type(y, t.dtype) for y, t in zip(found, here.out_avals, strict=True)]

    return _inlined(run, context, arrays)


ad.primitive_jvps[PRIMITIVE] = _differentiate
batching.primitive_batchers[PRIMITIVE] = _batch
mlir.register_lowering(PRIMITIVE, functools.partial(_lower, "any"))
for _name in PLATFORMS:
    _own = functools.partial(_lower, "gpu" if _name == "cuda" else _name)
    mlir.register_lowering(PRIMITIVE, _own, platform=_name)
