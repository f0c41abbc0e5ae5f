"""Memory that a step frees stays in the process, with glibc."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import ctypes, resource
from based_jax.training.devices.host_memory import keep_freed_memory

c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
c.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

def step():
    block = c.malloc(128 << 20)
    c.memset(block, 1, 128 << 20)
    c.free(block)

keeps and keep_freed_memory()
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_blocks_are_used_again_without_page_faults():
    faults = [
        int(subprocess.check_output([sys.executable, "-c", f"keeps = {keeps}\n{FAULTS}"]))
        for keeps in (False, True)
    ]
    assert faults[0] > 100, "else there is nothing to gain"
    assert faults[1] < faults[0] / 10
