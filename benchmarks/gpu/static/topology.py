"""Make virtual GPUs: XLA's whole GPU compiler on a machine without one.

Needs jax's CUDA plugin (extra `inspect`), no GPU and no driver. Set the platform to "cpu" first.
"""

import contextlib
import functools
import importlib.util
import os
import string
import sys
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, use_abstract_mesh

from pallas_kernels import devices as gpus
from pallas_kernels.offline import H200, lowering_for

INSTALL = "pip install 'based-jax[inspect]'"
"""The command in messages about a missing wheel."""

PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


def use_cpu() -> None:
    """Use the CPU platform: nothing here runs on a GPU, and the plugin otherwise needs a driver."""
    if not os.environ.get("JAX_PLATFORMS"):
        jax.config.update("jax_platforms", "cpu")


@functools.cache
def topology(devices: int = 1, kind: str = H200) -> tuple[Any, ...]:
    """Return GPUs that exist for the compiler only; programs with arguments sharded over them compile.

    Args:
        devices: number of GPUs.
        kind: name of a GPU in `devices.FAMILIES`.

    Raises:
        ImportError: jax's CUDA plugin is missing.
        ValueError: no such GPU.
    """
    from jax.experimental import topologies

    if not any(map(importlib.util.find_spec, PLUGINS)):
        raise ImportError(f"compiling for {devices} GPU(s) needs jax's CUDA plugin ({INSTALL})")
    config = target_config(kind)
    options = {"topology_name": "gpu", "topology": f"1x1x{devices}", "target_config": config}
    with _muted():
        jax.devices("cpu")  # loads the plugin, which reports at length that there is no GPU
        return tuple(topologies.get_topology_desc(platform="cuda", **options).devices)


def target_config(kind: str) -> str:
    """Return XLA's description of a GPU: its own values for compiling kernels, otherwise an H200's."""
    family = gpus.family(kind)
    if family is None:
        raise ValueError(f"kind = {kind!r}: expected the name of a GPU in devices.FAMILIES")
    major, minor = family.capability.split(".")
    template = resources.files("benchmarks.gpu.static").joinpath("gpu.txtpb").read_text()
    return string.Template(template).substitute(
        kind=family.names[0],  # the name that jax lowers for
        major=major,
        minor=minor,
        features="feature_extension: ACCELERATED_FEATURES" if int(major) >= 9 else "",
        shared=family.shared,
        per_core=family.shared + 1024,
    )


def placed(arguments: Any, kind: str = H200) -> list[Any]:
    """Put the arguments, trees of arrays or shapes, whole on one virtual GPU, see `topology`."""
    mesh = Mesh(np.array(topology(1, kind)), ("device",))
    whole = NamedSharding(mesh, PartitionSpec())
    shape = functools.partial(jax.ShapeDtypeStruct, sharding=whole)
    return jax.tree.map(lambda x: shape(x.shape, x.dtype), list(arguments))


def lower_program(
    function: Callable[..., Any], *arguments: Any, donate: tuple[int, ...] = ()
) -> jax.stages.Lowered:
    """Lower `function` for virtual GPUs; the shardings of `arguments` determine the `topology`.

    Args:
        donate: indices of the arguments whose memory the results may reuse.
    """
    with _on_mesh_of(arguments), _muted():
        program = jax.jit(function, donate_argnums=donate)
        return program.trace(*arguments).lower(lowering_platforms=("cuda",))


def compile_program(
    function: Callable[..., Any], *arguments: Any, donate: tuple[int, ...] = (), **options: Any
) -> jax.stages.Compiled:
    """Compile `function` as on a GPU: the compiler knows the limits and partitions; see `lower_program`.

    Args:
        options: the compiler's.
    """
    with _on_mesh_of(arguments):  # the partitioner lowers kernels again
        lowered = lower_program(function, *arguments, donate=donate)
        with _muted():
            return lowered.compile(compiler_options=options)


def compile_for(
    kind: str, function: Callable[..., Any], *arguments: Any, donate: tuple[int, ...] = ()
) -> jax.stages.Compiled:
    """Compile what a GPU of this kind would run, with the ops' choice of kernels for it."""
    on_gpu = placed(arguments, kind)
    with lowering_for(kind):
        return compile_program(function, *on_gpu, donate=donate)


def _on_mesh_of(arguments: Any) -> contextlib.AbstractContextManager[Any]:
    """Lower for the devices over which the arguments are sharded."""
    mesh = next(x.sharding.mesh for x in jax.tree.leaves(arguments))
    return use_abstract_mesh(mesh.abstract_mesh)


@contextlib.contextmanager
def uncached() -> Iterator[None]:
    """Within the block, compile without jax's disk cache: a cached program writes no files."""
    config: Any = jax.config
    before = config.jax_enable_compilation_cache
    config.update("jax_enable_compilation_cache", False)
    try:
        yield
    finally:
        config.update("jax_enable_compilation_cache", before)


@contextlib.contextmanager
def _muted() -> Iterator[None]:
    """Discard the process's standard error: compiled libraries bypass Python to write to it."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
