"""Sums of products stay in float32, by whichever way torch has on the device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from agentgym.models.matmul import add_matmul_float32, has_wide_products, matmul_float32


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    has_wide_products.cache_clear()
    yield
    has_wide_products.cache_clear()


def rocm(monkeypatch: pytest.MonkeyPatch, answer: float | None, *, adds: bool = True) -> torch.device:
    """A build whose wide products are refused, or all this number. adds: whether they can be added to a matrix."""
    real_ones = torch.ones

    def product(*_: object, **__: object) -> torch.Tensor:
        if answer is None:
            raise RuntimeError("gemm input type at::BFloat16 and output type float is not supported for ROCm")
        return torch.full((16, 16), answer)

    def add_to(total: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        if not adds:
            raise RuntimeError("not supported for ROCm")
        return total + product()

    monkeypatch.setattr(torch.version, "hip", "7.2")
    monkeypatch.setattr(torch, "ones", lambda *shape, dtype, device: real_ones(*shape, dtype=dtype))
    monkeypatch.setattr(torch, "mm", product)
    monkeypatch.setattr(torch, "addmm", add_to)
    return torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("answer", "adds", "has"), [(16.0, True, True), (None, True, False), (8.0, True, False), (16.0, False, False)]
)
def test_a_build_for_rocm_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, answer: float | None, adds: bool, has: bool
) -> None:
    device = rocm(monkeypatch, answer, adds=adds)
    assert has_wide_products(device, torch.bfloat16) is has
    assert has_wide_products(torch.device("cpu"), torch.bfloat16) is False
    monkeypatch.delattr(torch, "mm")
    assert has_wide_products(device, torch.bfloat16) is has


def test_cuda_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.delattr(torch, "mm")
    assert has_wide_products(torch.device("cuda", 0), torch.bfloat16)


def test_where_there_is_no_wide_product_the_factors_are_made_wide() -> None:
    left, right = (torch.randn(5, 300), torch.randn(300, 7))
    found = matmul_float32(left.bfloat16(), right.bfloat16())
    exact = (left.bfloat16().double() @ right.bfloat16().double()).float()
    assert found.dtype == torch.float32
    assert torch.allclose(found, exact, atol=1e-4)
    total = torch.randn(5, 7)
    wanted = total + exact
    add_matmul_float32(total, left.bfloat16(), right.bfloat16())
    assert torch.allclose(total, wanted, atol=1e-4)


@pytest.mark.gpu
def test_on_a_gpu_a_product_is_added_in_place_and_in_float32() -> None:
    left, right = (torch.randn(shape, device="cuda").bfloat16() for shape in ((20_000, 64), (64, 3_000)))
    total = torch.randn(20_000, 3_000, device="cuda")
    wanted = total.double() + left.double() @ right.double()
    add_matmul_float32(total[:16, :16].clone(), left[:16], right[:, :16])  # cuBLAS takes its own memory once
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    add_matmul_float32(total, left, right)
    assert torch.cuda.max_memory_allocated() - held < total.numel(), "no second matrix of 4 bytes each"
    assert torch.allclose(total.double(), wanted, atol=1e-4)
