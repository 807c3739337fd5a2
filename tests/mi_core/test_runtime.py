"""Large tensors that come and go cost no page faults any more."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import resource, torch
from mi_core.runtime import keep_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.zeros(4_000_000)  # 16 MB, 3,900 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
torch.set_num_threads(1)
faults()
before = faults()
assert keep_freed_memory()
faults()
print(before, faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_freed_memory_is_kept() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert after < 4000 <= max(before, 4000)
    assert after < before or before < 4000
