"""Memory that a step frees stays in the process, with glibc."""

import platform
import subprocess
import sys

import pytest

from based_jax.training.devices import host_memory

FAULTS = """
import ctypes, resource, runpy, sys

c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
c.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

def step():
    block = c.malloc(128 << 20)
    c.memset(block, 1, 128 << 20)
    c.free(block)

for path in sys.argv[1:]:
    runpy.run_path(path)["keep_freed_memory"]()
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.release
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_blocks_are_used_again_without_page_faults():
    faults = [
        int(subprocess.check_output([sys.executable, "-c", FAULTS, *path]))
        for path in ([], [host_memory.__file__])
    ]
    assert faults[0] > 100, "else there is nothing to gain"
    assert faults[1] < faults[0] / 10
