"""Whole programs on hosts with their own network, processes and memory."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from agentgym.runs.audit import audit
from agentgym.trainer.engine import TrainingEngine
from tests.hosts.namespaces import NamespaceHost, namespaces, why_unavailable
from tests.hosts.ranks_program import BATCHES, compared, make_setup

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.xdist_group("namespaces"),
    pytest.mark.skipif(bool(why_unavailable()), reason=why_unavailable() or "none"),
]
TESTS = Path(__file__).parents[1]
LICENSED = """
import socket
from agentgym_envs.math import MathEnvironment

class Licensed(MathEnvironment):
    name = "licensed"

    def __init__(self):
        if socket.gethostname() == "host2":
            raise OSError("no license on host2")
        super().__init__(levels=[1])
"""


async def lend(hosts: list[NamespaceHost], folder: Path, *, gpus: Sequence[str] = ()) -> None:
    for index, host in enumerate(hosts):
        (folder / f"{host.name}.log").touch()
        given = {"CUDA_VISIBLE_DEVICES": gpus[index]} if gpus else {}
        await host.start("agentgym", "host", output=folder / f"{host.name}.log", environment=given)
    while not all("waiting" in (folder / f"{host.name}.log").read_text() for host in hosts):
        await asyncio.sleep(0.05)


async def test_ranks_on_two_hosts_compute_what_one_process_does(tmp_path: Path) -> None:
    async with namespaces(2) as hosts:
        await lend(hosts, tmp_path, gpus=("GPU-a1,7", "3"))
        path = {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
        program = (TESTS / "hosts" / "ranks_program.py", tmp_path, "host0", "host1")
        done = await hosts[0].run("python", *program, environment=path)
        assert done.code == 0, done.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["hosts"] == ["host0", "host1"]
    assert found["gpus"] == {"host0": ["GPU-a1", "7"], "host1": ["3"]}, "those that each host was given, not all it has"
    engine = TrainingEngine(make_setup(tmp_path, 1))
    wanted = compared([engine.train_step(samples) for samples in BATCHES])
    engine.close()
    assert found["figures"] == pytest.approx(wanted, rel=1e-5) and len(set(wanted)) > 3


async def test_a_run_on_three_hosts_trains_and_leaves_nothing(tmp_path: Path) -> None:
    async with namespaces(3) as hosts:
        await lend(hosts, tmp_path)
        given = (
            "launcher={name: attach, machines: [host0, host1, host2]}",
            "hosts={trainer: [host1], generator: [host0, host2]}",
            *("env.options.levels=[1]", "loop.steps=2", "loop.groups_per_step=2", "loop.group_size=4"),
            *("eval.at_end=false", "logging.sinks=[]", f"logging.runs_dir={tmp_path / 'runs'}"),
        )
        words = [word for setting in given for word in ("--set", setting)]
        done = await hosts[0].run("agentgym", "train", "--env", "math", *words)
        assert done.code == 0, done.output
        assert "not encrypted" in done.output and "step 2/2" in done.output
        assert [(await host.run("ls", "/dev/shm")).output for host in hosts] == ["", "", ""]


async def test_hosts_that_can_not_take_part_are_named_before_anything_starts(tmp_path: Path) -> None:
    async with namespaces(2, private=("/srv",)) as hosts:
        await lend(hosts, tmp_path)

        async def refused(*given: str) -> str:
            words = [word for setting in given for word in ("--set", setting)]
            done = await hosts[0].run("agentgym", "train", "--env", "math", *words)
            assert done.code == 2, done.output
            return done.output

        two = "launcher={name: attach, machines: [host0, host1]}"
        assert "host host1 does not see what this machine writes to /srv" in await refused(
            two, "logging.runs_dir=/srv/runs"
        )
        closed = "launcher={name: attach, machines: ['host1:99'], wait_s: 0.1}"
        assert "host host1 does not answer on port 99" in await refused(closed, f"logging.runs_dir={tmp_path}")


WORKERS = (
    "launcher={name: attach, machines: [host0, host1, host2]}",
    "hosts={trainer: [host0], generator: [host0, host1], worker: [host1, host2], lost_after_s: 6}",
    *("rollout.workers=2", "generator.replicas=2", "env.options.levels=[1]", "loop.steps=100000"),
    "optimizer.lr=1e-9",  # else it has learned all on a slow machine, and ends
    *("loop.groups_per_step=4", "loop.group_size=4", "eval.at_end=false", "logging.sinks=[]"),
)


@pytest.mark.timeout(600)
async def test_a_run_goes_on_while_a_host_of_workers_is_cut_off_and_when_it_is_back(tmp_path: Path) -> None:
    folder, out = tmp_path / "runs" / "one", tmp_path / "out"
    async with namespaces(3) as hosts:
        await lend(hosts, tmp_path)
        words = [word for setting in (*WORKERS, f"logging.runs_dir={folder.parent}") for word in ("--set", setting)]
        run = await hosts[0].start("agentgym", "train", "--env", "math", "--name", "one", *words, output=out)

        async def until(reached: Callable[[], object]) -> None:
            while not reached():
                assert run.process.returncode is None, out.read_text()
                await asyncio.sleep(0.05)

        def steps() -> list[dict[str, float]]:
            path = folder / "metrics.jsonl"
            return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

        async def goes_on() -> None:
            goal = len(steps()) + 4  # more than what was in flight
            await until(lambda: len(steps()) >= goal)

        async def after(act: Callable[[], object], text: str) -> None:
            before = len((folder / "events.log").read_text())
            act()
            await until(lambda: text in (folder / "events.log").read_text()[before:])
            await goes_on()

        await goes_on()
        while not steps()[-1]["workers/groups_again_total"]:  # it may have had none when it was cut
            await after(hosts[2].cut, "host host2 is lost")
            await after(hosts[2].mend, "host host2 is back")
        assert steps()[-1]["workers/up"] == 2
        assert "--name worker" not in (await hosts[2].run("ps", "axww")).output, "what was left there is killed"
        run.signal(signal.SIGTERM)
        assert (await run.wait()).code not in (0, -signal.SIGKILL)
    assert audit(folder).findings == []


async def test_a_worker_that_can_not_open_the_environment_ends_the_run_with_its_hosts_name(tmp_path: Path) -> None:
    (tmp_path / "licensed.py").write_text(LICENSED)
    async with namespaces(3) as hosts:
        await lend(hosts, tmp_path)
        given = (*WORKERS, f"logging.runs_dir={tmp_path / 'runs'}", f"env.name={tmp_path}/licensed.py:Licensed")
        words = [word for setting in given if "levels" not in setting for word in ("--set", setting)]
        done = await hosts[0].run("agentgym", "train", "--name", "one", *words)
        assert done.code == 2, done.output
        assert "on host host2: " in done.output and "no license on host2" in done.output, done.output
        folder = tmp_path / "runs" / "one"
        assert not (folder / "metrics.jsonl").exists() and not [*folder.glob("episodes/*")], "nothing was sampled"
