"""Sums of products stay in float32, by whichever way torch has on the device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from agentgym.models.matmul import has_wide_products, matmul_float32


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    has_wide_products.cache_clear()
    yield
    has_wide_products.cache_clear()


def rocm(monkeypatch: pytest.MonkeyPatch, answer: float | None) -> torch.device:
    """A build whose wide products are refused, or all this number."""
    real_ones = torch.ones

    def product(*_: object, **__: object) -> torch.Tensor:
        if answer is None:
            raise RuntimeError("gemm input type at::BFloat16 and output type float is not supported for ROCm")
        return torch.full((16, 16), answer)

    monkeypatch.setattr(torch.version, "hip", "7.2")
    monkeypatch.setattr(torch, "ones", lambda *shape, dtype, device: real_ones(*shape, dtype=dtype))
    monkeypatch.setattr(torch, "mm", product)
    return torch.device("cuda", 0)


@pytest.mark.parametrize(("answer", "has"), [(16.0, True), (None, False), (8.0, False)])
def test_a_build_for_rocm_is_asked_once(monkeypatch: pytest.MonkeyPatch, answer: float | None, has: bool) -> None:
    device = rocm(monkeypatch, answer)
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
