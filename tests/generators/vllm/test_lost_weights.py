"""vLLM goes on with the weights that it has where an update's can't be read, which is noticed before it is paused."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from agentgym.errors import InfraError
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.engine import NotLoaded
from agentgym.generators.vllm.engine import VllmEngine


class Processes:
    """Answers as vLLM's do, until it is asked to pause."""

    def __init__(self, failure: str) -> None:
        self.failure = failure
        self.asked: list[str] = []
        self.engine_core = self

    async def collective_rpc(self, method: str, *, args: Sequence[object] = ()) -> list[str | None]:
        self.asked.append(method)
        return [self.failure]

    async def pause_scheduler_async(self, **options: Any) -> None:
        raise InfraError("vLLM does not pause")


class Cpu:
    """vLLM's platform."""

    def is_cuda_alike(self) -> bool:
        return False

    def is_unspecified(self) -> bool:
        return False


@pytest.mark.parametrize("where", ["in vLLM's process", "in ours"])
async def test_weights_that_cannot_be_read_leave_vllm_as_it_was(old_model, new_model, where, monkeypatch) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())  # it sets vLLM's variables
    platforms: Any = ModuleType("vllm.platforms")
    platforms.current_platform = Cpu()
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    engine = VllmEngine(GeneratorConfig(device="cpu", max_model_len=64), str(old_model.folder))
    engine._failure, engine._llm = "", Processes("InfraError: the weights of version 1 did not arrive")

    def lost() -> Any:
        yield new_model.weights()[0]
        raise InfraError("the weights of version 1 did not arrive")

    with pytest.raises(NotLoaded, match="the weights of version 1 did not arrive"):
        await engine.update_weights(1, lost() if where == "in ours" else new_model.weights())
    assert engine._llm.asked == ([] if where == "in ours" else ["agentgym_prepare", "agentgym_prepared"])
    engine._llm = Processes("")
    for why in ("vLLM does not pause", "the update to version 2 failed"):  # the first was not refused
        with pytest.raises(InfraError, match=why) as raised:
            await engine.update_weights(2, new_model.weights())
        assert not isinstance(raised.value, NotLoaded)
