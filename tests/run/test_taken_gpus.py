"""A GPU that others fill is refused before the start, unless they give it back in time."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
import torch

from agentgym.config import apply_overrides
from agentgym.errors import UserError
from agentgym.families.registry import architecture_of, read_architecture
from agentgym.models.released import RELEASED
from agentgym.models.tiny import policy_path
from agentgym.planning.machine import Gpu, Machine
from agentgym.planning.placement import Placement, PlannedProcess, Wanted, assign
from agentgym.run import placement
from agentgym.run.layers import finish_recipe
from agentgym.run.placement import beside_others, refuse_taken_gpus, settle_placement
from agentgym.trainer.config import TrainerConfig

EMPTY = Gpu(name="H100", memory_gib=80.0, free_gib=79.0, uuid="1c")
TAKEN = replace(EMPTY, free_gib=20.0)
PROCS = (
    PlannedProcess(name="trainer 0", gpu=1, parts={"weights": 10.0}),
    PlannedProcess(name="its step 0", gpu=1, parts={"activations": 30.0}, phase="trainer"),
    PlannedProcess(name="generator 0", gpu=1, parts={"cache": 25.0}, phase="generator"),
)


def placed(*gpus: Gpu) -> Placement:
    return Placement(machine=Machine(gpus=gpus), trainer_gpus=(1,), generator_gpus=(1,), procs=PROCS)


def test_it_is_named_with_what_is_used_and_what_is_needed() -> None:
    said = (
        r"^GPU 1: 60\.0 of 80\.0 GiB are used by others, and about 40\.0 are needed: end what holds them.*check_memory"
    )
    with pytest.raises(UserError, match=said):
        refuse_taken_gpus(placed(EMPTY, TAKEN), lambda: Machine(gpus=(EMPTY, TAKEN)), wait_s=0.0)


def test_one_that_nobody_here_uses_may_be_full_and_one_that_is_unknown_is_tried() -> None:
    for gpus in ((TAKEN, EMPTY), (TAKEN, replace(EMPTY, free_gib=None)), (TAKEN, replace(EMPTY, free_gib=40.0))):
        refuse_taken_gpus(placed(*gpus), wait_s=0.0)


def test_what_is_lost_between_blocks_is_spared_where_others_hold_memory_and_auto_gives_way_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for free, refused in ((41.0, True), (43.0, False)):
        shared = replace(EMPTY, free_gib=free)
        refuse_taken_gpus(placed(EMPTY, shared), wait_s=0.0)
        with pytest.raises(UserError) if refused else contextlib.nullcontext():
            refuse_taken_gpus(placed(EMPTY, shared), wait_s=0.0, spare=True)
    refuse_taken_gpus(placed(EMPTY, replace(EMPTY, memory_gib=41.0, free_gib=40.5)), wait_s=0.0, spare=True)

    model = architecture_of(RELEASED["Qwen/Qwen3-1.7B"], "Qwen3-1.7B")
    trainer = TrainerConfig(device="cuda", dtype="bfloat16", seq_len=2048, rows_per_microbatch=1, logprob_chunk=256)
    alone = Wanted(model=model, trainer=trainer, generator=None, batch_tokens=1 << 20)
    monkeypatch.setattr(placement, "WAIT_S", 0.0)
    gathers = {}
    for free in (79.0, 39.5, 38.0, 30.0):  # 37.2 are needed to gather once, 34.8 without
        gpu = replace(EMPTY, free_gib=free)
        try:
            gathers[free] = beside_others(alone, assign(alone, Machine(gpus=(gpu,)))).gather_weights
        except UserError as error:
            gathers[free] = str(error)[:6]
    assert gathers == {79.0: "once", 39.5: "once", 38.0: "each", 30.0: "GPU 0:"}


def test_a_run_says_what_auto_gave_up_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "WAIT_S", 0.0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    model = architecture_of(RELEASED["Qwen/Qwen3-1.7B"], "Qwen3-1.7B")
    fields = ["env.name=math", "trainer={device: cuda, dtype: bfloat16, seq_len: 2048, rows_per_microbatch: 1}"]
    recipe = finish_recipe(apply_overrides({}, [*fields, "generator.device=cpu"]))[0]
    needed = next(proc.gib for proc in assign(placement.wanted_of(recipe, model), Machine(gpus=(EMPTY,))).procs)
    notes: list[str] = []
    for free in (needed + 0.1, 79.0):
        gpu = replace(EMPTY, free_gib=free)
        monkeypatch.setattr(placement, "this_machine", lambda gpu=gpu: Machine(gpus=(gpu,)))
        kept = free == 79.0
        assert settle_placement(recipe, model, notes.append).trainer.gather_weights == ("once" if kept else "each")
        assert [note for note in notes if note.startswith("shared")] == notes[:1] != []
        assert "others hold memory" in notes[0] and "gather_weights is each" in notes[0]


def test_memory_that_is_given_back_a_moment_later_is_waited_for() -> None:
    looks = [Machine(gpus=(EMPTY, TAKEN)), Machine(gpus=(EMPTY, EMPTY))]
    refuse_taken_gpus(placed(EMPTY, TAKEN), lambda: looks.pop(0), wait_s=5.0)
    assert looks == []


def test_a_run_looks_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    full = replace(EMPTY, free_gib=0.1)
    monkeypatch.setattr(placement, "this_machine", lambda: Machine(gpus=(full,), memory_gib=64.0))
    monkeypatch.setattr(placement, "WAIT_S", 0.0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    given = apply_overrides({}, ["env.name=math", "trainer.device=cuda", "generator.device=cpu"])
    recipe, model = finish_recipe(given)[0], read_architecture(policy_path())
    with pytest.raises(UserError, match=r"trainer\.device is 'cuda' but torch sees no GPU"):
        settle_placement(recipe, model, print)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UserError, match=r"^GPU 0: 79\.9 of 80\.0 GiB are used by others"):
        settle_placement(recipe, model, print)
    unchecked = replace(recipe, trainer=replace(recipe.trainer, check_memory=False))
    assert settle_placement(unchecked, model, print).trainer.gpus == (0,)
