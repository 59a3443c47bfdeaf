"""A trainer that warms up holds its GPUs from its start until it is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import NoProcesses
from tiny_model import draw_samples

from agentgym.actors.endpoint import method_name
from agentgym.actors.gpu_turn import HeldGpus
from agentgym.trainer import actor as module
from agentgym.trainer import warm_up
from agentgym.trainer.actor import TrainerActor
from agentgym.trainer.client import TrainerClient
from agentgym.trainer.engine import TrainingEngine

MakeEngine = Callable[..., TrainingEngine]


class Watched(HeldGpus):
    is_held = False

    def __init__(self) -> None:
        super().__init__()
        Watched.is_held = True

    def release(self) -> None:
        super().release()
        Watched.is_held = False


@pytest.mark.parametrize("warms", [True, False])
async def test_it_holds_its_gpus_until_it_has_compiled(
    warms: bool, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HeldGpus", Watched)
    seen = []
    monkeypatch.setattr(warm_up, "warm_up", lambda *given: seen.append((*given, Watched.is_held)))
    engine = make_engine()
    setup = replace(engine._setup, warm_up=warms)
    trainer = TrainerActor(setup, None)
    monkeypatch.setattr(trainer, "_build", lambda: engine)
    await trainer.on_start()
    assert Watched.is_held is warms
    await TrainerActor.setup.plain_method(trainer)
    assert Watched.is_held is warms
    if warms:
        await TrainerActor.warm_up.plain_method(trainer)
    assert seen == ([(engine, setup, True)] if warms else []) and not Watched.is_held
    await TrainerActor.train_step.plain_method(trainer, draw_samples(4))


class Asked(TrainerClient):
    """Of no process; keeps what it is asked for."""

    endless = ""

    def _new_group(self) -> Any:
        self.asked, self.processes = list[str](), NoProcesses()
        return self.processes

    async def _ask(self, method: Any, *args: Any) -> list[Any]:
        self.asked.append(method_name(method))
        if self.asked[-1] == self.endless:
            await asyncio.Event().wait()
        return [None]


@pytest.mark.parametrize(("warms", "asked"), [(True, ["setup", "warm_up"]), (False, ["setup"])])
async def test_it_compiles_in_a_call_of_its_own_before_it_has_started(
    warms: bool, asked: list[str], make_engine: MakeEngine
) -> None:
    client = Asked(replace(make_engine()._setup, warm_up=warms), runtime=object())  # type: ignore[arg-type]
    await client.start()
    assert client.asked == asked


async def test_processes_that_compile_are_killed_when_the_start_is_stopped(make_engine: MakeEngine) -> None:
    client = Asked(replace(make_engine()._setup, warm_up=True), runtime=object())  # type: ignore[arg-type]
    client.endless = "warm_up"
    starting = asyncio.create_task(client.start())
    while client._group is None or client.endless not in client.asked:
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled() and client.processes.calls == ["start", "give_up", "stop"], "they would compile on"


def test_nothing_is_computed_where_nothing_is_compiled(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine = make_engine()
    setup = replace(engine._setup, model_path=str(tmp_path / "is not read"))
    warm_up.warm_up(engine, setup)


def test_a_loss_that_refuses_random_tokens_is_asked_again_in_the_first_step(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    setup = replace(engine._setup, trainer=replace(engine._setup.trainer, compile=True))
    asked = []

    def refuse(samples: object) -> None:
        asked.append(samples)
        raise ValueError("no routes")

    monkeypatch.setattr(engine, "forward_backward", refuse)
    warm_up.warm_up(engine, setup)
    assert len(asked) == 1
    monkeypatch.undo()
    engine.train_step(draw_samples(4))
