"""Large tensors that come and go cost no page faults any more."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from mi_core.runtime import kernels, prepare_cuda, tf32

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


@pytest.fixture
def flags() -> Iterator[None]:
    """Settings of CUDA that are put back."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    matmul.allow_tf32 = cudnn.allow_tf32 = cudnn.benchmark = False
    yield
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


@pytest.mark.usefixtures("flags")
def test_tf32_is_the_default_on_cuda_and_can_be_refused_and_allowed_inside() -> None:
    def allowed() -> tuple[bool, bool]:
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    prepare_cuda()
    assert allowed() == (True, True)
    assert torch.backends.cudnn.benchmark
    with pytest.raises(KeyError), tf32(False):
        assert allowed() == (False, False)
        with tf32(True):
            assert allowed() == (True, True)
        assert allowed() == (False, False)
        raise KeyError
    assert allowed() == (True, True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels compile here")
def test_kernels_that_do_not_compile_are_left_with_a_word() -> None:
    with pytest.warns(UserWarning, match="no kernel of mi_core.augmentations.fused here, most often for lack"):
        assert kernels.__wrapped__("mi_core.augmentations.fused") is None
