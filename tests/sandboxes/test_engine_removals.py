"""Removals on engines that are slow or odd, and requests whose callers are cancelled."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest
from fake_docker import FakeDocker, fake_docker
from pool_fakes import until

from agentgym.errors import InfraError
from agentgym_sandboxes.docker.attach import attach
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.endpoint import Endpoint, Tls
from agentgym_sandboxes.docker.engines import EngineGroup
from agentgym_sandboxes.docker.failures import EngineUnreachable, ImageGone
from agentgym_sandboxes.docker.image import ImageChoice
from agentgym_sandboxes.host.meter import CallMeter


async def test_a_container_that_ends_by_itself_is_not_removed_again(tmp_path: Path) -> None:
    async with fake_docker(tmp_path) as (docker, engine):
        engine.ends_within_s = 60.0
        docker.containers["c"] = "running"
        removal = asyncio.create_task(engine.remove("c"))
        await docker.until_asked("wait")
        await docker.end("c")
        async with asyncio.timeout(30):
            await removal
        await engine.remove("c")  # gone already
        assert docker.asked["delete"] == 0


@pytest.mark.parametrize(
    ("state", "status"),
    [*(("running", status) for status in (400, 404, 405, 500, 501)),  # an engine that can't tell of removals
     *((state, 200) for state in ("running", "exited", "created", "dead"))],
)  # fmt: skip
async def test_what_its_engine_does_not_remove_is_removed_after_a_while(
    tmp_path: Path, state: str, status: int
) -> None:
    async with fake_docker(tmp_path) as (docker, engine):
        engine.ends_within_s, docker.wait_status = 0.2, status
        docker.containers["c"] = state
        async with asyncio.timeout(30):
            await engine.remove("c")
        assert docker.containers == {} and docker.asked["delete"] == 1
        assert docker.asked["wait"] == (state in ("running", "exited"))  # the others never end by themselves


@pytest.mark.parametrize(("state", "asked", "count"), [("running", "wait", 8), ("dead", "delete", 4)])
async def test_removals_that_wait_or_hang_keep_no_start_waiting(
    tmp_path: Path, state: str, asked: str, count: int
) -> None:
    async with fake_docker(tmp_path) as (docker, engine):
        engine.ends_within_s = 60.0
        names = [f"c{number}" for number in range(12)]
        docker.containers = dict.fromkeys(names, state)
        docker.delete.clear()
        removals = [asyncio.create_task(engine.remove(name)) for name in names]
        await docker.until_asked(asked, count)
        await engine.create({}, "new")  # behind them it would be late
        assert not any(removal.done() for removal in removals)
        docker.delete.set()
        for name in names if state == "running" else ():
            await docker.end(name)
        await asyncio.gather(*removals)
        assert set(docker.containers) == {"new"}


async def test_a_removal_goes_on_when_its_caller_is_cancelled_and_the_close_waits_for_it(tmp_path: Path) -> None:
    async with fake_docker(tmp_path) as (docker, engine):
        docker.containers["c"] = "dead"
        docker.delete.clear()
        removal = asyncio.create_task(engine.remove("c"))
        await docker.until_asked("delete")
        again = asyncio.create_task(engine.remove("c"))  # the same: two at once leave ghosts
        await asyncio.sleep(0)
        removal.cancel()
        with pytest.raises(asyncio.CancelledError):
            await removal
        closing = asyncio.create_task(engine.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
        docker.delete.set()
        await asyncio.gather(closing, again)
        assert docker.containers == {} and docker.asked["delete"] == 1


async def test_a_creation_whose_caller_is_cancelled_does_not_outlive_its_removal(tmp_path: Path) -> None:
    async with fake_docker(tmp_path) as (docker, engine):
        docker.create.clear()
        creation = asyncio.create_task(engine.create({}, "c"))
        await docker.until_asked("create")
        creation.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creation
        removal = asyncio.create_task(engine.remove("c"))
        await asyncio.sleep(0.05)
        docker.create.set()
        await removal
        assert docker.asked["create"] == 1 and docker.containers == {} and not engine.names


@pytest.mark.hostile
async def test_an_attach_that_is_cancelled_at_any_point_leaves_no_complaint(tmp_path: Path) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    async with fake_docker(tmp_path) as (_, engine):
        for num_steps in range(12):
            attaching = asyncio.create_task(attach(engine._endpoint, "1.41", "c", asyncio.Protocol))
            for _ in range(num_steps):
                await asyncio.sleep(0)
            attaching.cancel()
            await asyncio.gather(attaching, return_exceptions=True)
            await asyncio.sleep(0.01)
            gc.collect()
    assert complaints == []


def group_of(*dockers: FakeDocker) -> EngineGroup:
    config = DockerConfig(engines=tuple(docker.url for docker in dockers), engine_timeout_s=60.0)
    return EngineGroup(config, None, "owner", CallMeter())


async def test_what_can_not_be_removed_keeps_nothing_else_from_being_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_docker(tmp_path) as (docker, _):
        docker.containers = {"busy": "dead", "c1": "created", "c2": "exited"}
        docker.stuck = {"busy"}
        group = group_of(docker)
        await group.open()
        said: list[str] = []
        with pytest.raises(InfraError, match="device or resource busy"):
            await group.reap(said.append)
        assert docker.containers == {"busy": "dead"} and len(said) == 2
        await group.tidy()  # what a start does: it is no reason not to start
        assert "could not remove all containers of dead owners" in caplog.text
        await group.close()


async def test_what_ends_while_others_are_removed_is_no_find(tmp_path: Path) -> None:
    async with fake_docker(tmp_path) as (docker, _):
        docker.containers = {"old": "dead", "ours": "dead"}
        group = group_of(docker)
        await group.open()
        [engine] = group.engines
        engine.names.add("ours")
        group._owner = docker.owner  # so that "old" is one that nobody waits for
        docker.delete.clear()
        reaping = asyncio.create_task(group.reap())
        await docker.until_asked("delete")
        await docker.end("ours")
        engine.names.discard("ours")
        docker.delete.set()
        assert await reaping == 1
        await group.close()


async def test_engines_that_were_reached_are_let_go_when_the_opening_is_cancelled(tmp_path: Path) -> None:
    async with fake_docker(tmp_path / "a") as (quick, _), fake_docker(tmp_path / "b") as (slow, _):
        slow.info.clear()
        group = group_of(quick, slow)
        opening = asyncio.create_task(group.open())
        await until(lambda: group.engines)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert group.engines == []


async def test_tls_files_that_are_being_replaced_are_an_engine_out_of_reach(tmp_path: Path) -> None:
    tls = Tls(ca=str(tmp_path / "ca"), cert=str(tmp_path / "cert"), key=str(tmp_path / "key"))
    async with fake_docker(tmp_path) as (_, engine):
        engine._endpoint = Endpoint(host="127.0.0.1", port=1, tls=tls)
        for request in (engine.ping(1.0), engine.attach("c", asyncio.Protocol)):
            with pytest.raises(EngineUnreachable):
                await request


async def test_an_image_that_was_removed_in_mid_run_is_said_with_what_makes_it(tmp_path: Path) -> None:
    async with fake_docker(tmp_path) as (docker, engine):
        docker.image = False
        group = EngineGroup(DockerConfig(engine=docker.url), ImageChoice(None), "owner", CallMeter())
        [member] = group.members
        member.engine, member.facts, member.image_id = engine, await engine.facts(), "sha256:12ab"
        for _ in range(4):  # the last ones while its circuit is open
            with pytest.raises(ImageGone, match=r"has no image agentgym-sandbox:.*`agentgym sandbox build` makes it"):
                await group.start_container(lambda: None)
        assert docker.asked["create"] == 3  # as many as engine_failures
