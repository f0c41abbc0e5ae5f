"""Compile a run's step for a mesh of virtual devices and report its memory and communication.

Nothing is allocated: the devices are virtual CPUs and the arrays only shapes. A GPU's compiler plans other
scratch memory and communication; parameters, optimizer state and their sharding are the same.
"""

import math
import time

import jax
import numpy as np
from rich.console import Console
from rich.table import Column, Table

from based_jax.training.devices.communication import traffic
from based_jax.training.devices.layout import layout_table
from based_jax.training.devices.sharding import mesh_sizes
from based_jax.training.step import Programs


def use_virtual_devices(mesh: str | None) -> None:
    """Create as many CPU devices as the mesh needs; call it before anything else queries JAX's devices."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", math.prod(mesh_sizes(mesh).values()))


def dry_run(programs: Programs, shape: tuple[int, int], *, segments: bool) -> None:
    """Print the layout, a device's memory and the traffic of a step; `shape` is rows, tokens of a batch."""
    console = Console(width=120)
    console.print(layout_table(programs.abstract_state))
    rows = jax.ShapeDtypeStruct(shape, np.int32, sharding=programs.rows)
    batch = dict.fromkeys(("inputs", "targets", *(("segment_ids",) if segments else ())), rows)
    begin = time.perf_counter()
    lowered = programs.train.lower(programs.abstract_state, batch)  # pyright: ignore[reportFunctionMemberAccess]
    traced = time.perf_counter()
    compiled = lowered.compile()
    memory = compiled.memory_analysis()
    mib = Column("MiB", justify="right")
    table = Table("what", mib, title="A training step on one device", title_justify="left")
    rows = {
        "state and batch": memory.argument_size_in_bytes,
        "scratch": memory.temp_size_in_bytes,
        "results that take new memory": memory.output_size_in_bytes - memory.alias_size_in_bytes,
    }
    for name, size in (*rows.items(), ("together", sum(rows.values()))):
        table.add_row(name, f"{size / 2**20:,.1f}")
    table.add_section()
    for kind, sent in traffic(compiled.as_text()).items():
        table.add_row(f"{kind}, received ({sent.count} times)", f"{sent.bytes / 2**20:,.1f}")
    console.print(table)
    seconds = f"traced in {traced - begin:.1f} s, compiled in {time.perf_counter() - traced:.1f} s"
    console.print(f"{jax.device_count()} devices, {shape[0]} x {shape[1]} tokens; {seconds}")
