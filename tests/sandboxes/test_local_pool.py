"""Slots, spares and calls under way of sandboxes that are local processes; shown with the plainest of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pool_fakes import until

from agentgym.errors import InfraError
from agentgym.sandbox import Limits, RunStatus, SandboxUnavailable
from agentgym_sandboxes.unsafe_subprocess.backend import UnsafeSubprocessBackend
from agentgym_sandboxes.unsafe_subprocess.config import UnsafeSubprocessConfig

pytestmark = pytest.mark.asyncio(loop_scope="session")

FOREVER = Limits(wall_s=60.0, cpu_s=60)


def make(slots: int = 1, spares: int = 0, lease_timeout_s: float = 60.0) -> UnsafeSubprocessBackend:
    return UnsafeSubprocessBackend(
        UnsafeSubprocessConfig(allow_unsafe=True, slots=slots, spares=spares, lease_timeout_s=lease_timeout_s)
    )


async def busy(backend: UnsafeSubprocessBackend, count: int) -> None:
    await until(lambda: backend.metrics()["sandbox/slots_used"] == count)


async def test_no_more_calls_run_at_a_time_than_there_are_slots(tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    async with make(slots=2) as backend:
        calls = [asyncio.create_task(backend.run(code, limits=FOREVER)) for _ in range(5)]
        await busy(backend, 2)
        assert backend.metrics()["sandbox/calls_waiting"] == 3
        await asyncio.sleep(0.3)
        go.touch()
        assert {(await call).status for call in calls} == {RunStatus.OK}
        found = backend.metrics()
        assert found["sandbox/calls_ok_total"] == 5
        assert found["sandbox/slots_used"] == found["sandbox/calls_waiting"] == 0
        assert found["sandbox/queue_p95_s"] > 0.3


async def test_a_wait_for_a_slot_ends_with_what_to_do() -> None:
    async with make(lease_timeout_s=0.3) as backend:
        call = asyncio.create_task(backend.run("while True: pass", limits=FOREVER))
        await busy(backend, 1)
        with pytest.raises(SandboxUnavailable, match=r"no slot came free within 0.3 s .* more `slots`"):
            await backend.run("pass")
        call.cancel()


async def test_calls_under_way_at_the_close_are_no_verdicts() -> None:
    backend = await make().start()
    calls = [asyncio.create_task(backend.run("while True: pass", limits=FOREVER)) for _ in range(3)]
    await busy(backend, 1)
    await backend.close()
    async with asyncio.timeout(20):
        found = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(error, InfraError) for error in found), found
    with pytest.raises(SandboxUnavailable, match="not started"):
        await backend.run("pass")


async def test_spares_are_taken_first_and_replaced() -> None:
    async with make(slots=4, spares=2) as backend:
        async with asyncio.timeout(30):
            for _ in range(3):
                while backend.metrics()["sandbox/containers_spare"] < 2:
                    await asyncio.sleep(0.01)
                await backend.run("pass")
        found = backend.metrics()
        assert found["sandbox/starts_total"] >= 4
        assert found.get("sandbox/cold_starts_total", 0.0) == 0
        assert found["sandbox/start_p50_s"] > 0


async def test_a_spare_that_is_taken_as_soon_as_it_stands_is_replaced_too() -> None:
    async with make(slots=4, spares=1) as backend:
        for _ in range(10):
            async with asyncio.timeout(30):
                while backend.metrics()["sandbox/containers_spare"] < 1:
                    await asyncio.sleep(0)  # so that the call comes before the task that made it is forgotten
            await backend.run("pass")


async def test_without_spares_every_call_starts_its_own() -> None:
    async with make(spares=0) as backend:
        for _ in range(3):
            assert (await backend.run("print(1)")).stdout == "1\n"
        assert backend.metrics()["sandbox/cold_starts_total"] >= 2  # the first was started with the backend


async def test_no_box_sees_anothers_payload_or_ends_another() -> None:
    async with make(slots=8, spares=2) as backend:
        results = await asyncio.gather(
            *(backend.run(f"import sys; print({n}, sys.stdin.read())", stdin=str(n)) for n in range(24))
        )
        assert [result.stdout for result in results] == [f"{n} {n}\n" for n in range(24)]
