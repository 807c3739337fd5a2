"""Large tensors that come and go cost no page faults any more."""

from __future__ import annotations

import os
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


COMPILATION = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from mi_core.augmentations import fused
from mi_core.encoders import batch_norm_kernels
bytes = dict.fromkeys(("images", "mirrored", "gray"), "*u8") | {"order": "*i64", "scale": "fp32", "eps": "fp32"}
floats = dict.fromkeys(("boxes", "factors", "result", "moments", "sums", "weight", "bias", "totals", "taps"), "*fp32")
half, block = dict.fromkeys(("images", "gradient", "made"), "*bf16"), {"BLOCK": fused.BLOCK}
for kernel, more, constants in (
    (fused._make_view, {}, block | {"COLOURS": True, "GRAY_FIRST": False, "CUBIC": True}),
    (fused._make_view, {}, block | {"COLOURS": False, "GRAY_FIRST": True, "CUBIC": False}),
    (fused._filter, {"images": "*fp32"}, block | {"REFLECT": True}),
    (batch_norm_kernels._gather, half, {"FORWARD": True}),
    (batch_norm_kernels._gather, half, {"FORWARD": False}),
    (batch_norm_kernels._finish, half, {"FORWARD": True}),
    (batch_norm_kernels._finish, half, {"FORWARD": False}),
):
    kinds = bytes | floats | more | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, {name: kinds.get(name, "i32") for name in kernel.arg_names}, constants)
    assert compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
"""


def test_kernels_are_compiled_without_a_gpu() -> None:
    """The compiler refuses what the interpreter lets pass, such as a variable of two types in a loop."""
    subprocess.run([sys.executable, "-c", COMPILATION], env=os.environ | {"TRITON_INTERPRET": "0"}, check=True)
