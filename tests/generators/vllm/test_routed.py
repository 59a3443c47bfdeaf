"""vLLM's record of experts: cut to what was computed, unknown where newer weights computed it again."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from agentgym.errors import InfraError
from agentgym.generators.vllm.routed import routes_of
from agentgym.routes import UNKNOWN, Routes
from agentgym.types import VersionSpan

EXPERTS = np.arange(7 * 3 * 2, dtype=np.uint8).reshape(7, 3, 2)
ONE = [VersionSpan(version=4, start=0, end=3)]
TWO = [VersionSpan(version=4, start=0, end=2), VersionSpan(version=5, start=2, end=3)]


def rows(routes: Routes) -> list[list[int]]:
    ids = array("H", routes.ids).tolist()
    return [ids[at : at + routes.width] for at in range(0, len(ids), routes.width)]


def test_the_last_token_and_layers_without_experts_are_left_out() -> None:
    routes = routes_of(EXPERTS, start=0, prompt_len=5, versions=ONE, layers=(0, 2))
    assert rows(routes) == EXPERTS[:, [0, 2]].reshape(7, 4).tolist()
    cut = routes_of(EXPERTS, start=1, prompt_len=5, versions=ONE, layers=(0, 1, 2))
    assert (cut.start, cut.end) == (1, 7) and rows(cut) == EXPERTS[:6].reshape(6, 6).tolist()


def test_what_newer_weights_computed_again_is_unknown() -> None:
    found = rows(routes_of(EXPERTS, start=0, prompt_len=5, versions=TWO, layers=(0, 1, 2)))
    assert found[:6] == [[UNKNOWN] * 6] * 6 and found[6] == EXPERTS[6].flatten().tolist()


@pytest.mark.parametrize(
    ("experts", "layers"), [(None, (0, 1, 2)), (EXPERTS[:5], (0, 1, 2)), (EXPERTS[:, :2], (0, 1, 2)), (EXPERTS, (0, 3))]
)
def test_missing_tokens_or_layers_are_refused(experts: np.ndarray | None, layers: tuple[int, ...]) -> None:
    with pytest.raises(InfraError, match="vLLM returned"):
        routes_of(experts, start=0, prompt_len=5, versions=ONE, layers=layers)
