"""Which requests an engine works on: the line, and how many slots there are."""

from __future__ import annotations

import asyncio

import pytest

from agentgym.generators import slots as rules
from agentgym.generators.slots import AdaptiveSlots, Line


def test_next_turns_go_before_new_conversations_and_each_kind_in_its_order() -> None:
    line: Line[str] = Line()
    for ticket, (item, continues) in enumerate([("a", False), ("b", False), ("a2", True), ("b2", True), ("c", False)]):
        line.put(ticket, item, continues=continues)
    assert line.remove(1) and not line.remove(1) and len(line) == 4
    assert [line.pop()[1] for _ in range(4)] == ["a2", "b2", "a", "c"]
    with pytest.raises(KeyError):
        line.pop()


def test_nobody_is_overtaken_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(rules.time, "monotonic", lambda: now_s[0])
    line: Line[str] = Line()
    line.put(0, "new", continues=False)
    now_s[0] += rules.OVERTAKEN_S + 1
    line.put(1, "next turn", continues=True)
    assert [line.pop()[1], line.pop()[1]] == ["new", "next turn"]


async def taken(gate: AdaptiveSlots, count: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(gate.take(continues=False)) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_never_more_than_there_are_slots_and_a_cancelled_wait_takes_none() -> None:
    gate = AdaptiveSlots(2)
    tasks = await taken(gate, 5)
    assert gate.taken_now == 2 and [task.done() for task in tasks] == [True, True, False, False, False]
    tasks[2].cancel()  # while it waits
    await asyncio.sleep(0)
    gate.give_back()
    tasks[3].cancel()  # when it was given a place, and does not know it yet
    await asyncio.gather(*tasks[2:4], return_exceptions=True)
    await asyncio.sleep(0)
    assert gate.taken_now == 2 and tasks[4].done() and not tasks[4].cancelled()
    gate.give_back()
    gate.give_back()
    assert gate.taken_now == 0


async def test_fewer_slots_when_keys_and_values_do_not_fit_once_for_each_time() -> None:
    gate = AdaptiveSlots(100)
    await taken(gate, 100)
    gate.saw(kv_share=0.99, num_preempted=3)
    assert gate.limit == 80
    gate.saw(kv_share=0.99, num_preempted=3)
    assert gate.limit == 80, "20 sequences are still more than the new limit allows"
    for _ in range(30):
        gate.give_back()
    gate.saw(kv_share=0.95, num_preempted=1)
    assert gate.limit == 56 and gate.num_cuts == 2


async def test_sequences_thrown_out_for_new_weights_cost_no_place() -> None:
    gate = AdaptiveSlots(10)
    await taken(gate, 10)
    gate.saw(kv_share=0.5, num_preempted=0)
    gate.saw(kv_share=0.0, num_preempted=10)
    assert gate.limit == 10


async def test_slots_come_back_while_there_is_room_and_somebody_waits() -> None:
    gate = AdaptiveSlots(64)
    await taken(gate, 64)
    gate.saw(kv_share=0.99, num_preempted=1)
    assert gate.limit == 51
    for _ in range(64):
        gate.give_back()
    assert gate.limit == 51, "nobody waits"

    async def rounds(kv_share: float) -> int:
        """The limit after as many completions as there are slots, with others waiting."""
        waiting = await taken(gate, 400)
        gate.saw(kv_share=kv_share, num_preempted=0)
        for _ in range(gate.limit):
            gate.give_back()
        for task in waiting:
            if not task.done():
                task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        while gate.taken_now:
            gate.give_back()
        return gate.limit

    assert await rounds(0.95) == 51, "no room"
    assert await rounds(0.5) == 53, "two more, of 64 slots"
    for _ in range(20):
        await rounds(0.5)
    assert gate.limit == 64
