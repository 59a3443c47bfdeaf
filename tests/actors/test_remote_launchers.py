"""The launchers ssh, slurm, kubernetes and skypilot: what a cluster that is not as it should be is told by name."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from waiting import LONG_S, until

from agentgym.actors.launchers import KubernetesLauncher, Launcher, SkyPilotLauncher, SlurmLauncher, SshLauncher, remote
from agentgym.actors.launchers.remote import start_host
from agentgym.errors import UserError

SCONTROL = 'test "$1 $2 $3" = "show hostnames n[1-2]" && echo localhost && echo localhost'


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of these programs alone, and outside of every cluster."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for variable in ("SLURM_JOB_NODELIST", "KUBERNETES_SERVICE_HOST", "SKYPILOT_NODE_IPS"):
        monkeypatch.delenv(variable, raising=False)
    return folder


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/bash\nPATH={os.defpath}\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        (SlurmLauncher(), ["`agentgym launch slurm RECIPE` submits a job", "salloc"]),
        (SshLauncher(), ["launcher.machines is empty"]),
        (SshLauncher(machines=("node1",)), ["needs the program ssh", "install openssh-client"]),
        (KubernetesLauncher(job="one"), ["in a pod of the Job", "`agentgym launch kubernetes RECIPE`"]),
        (SkyPilotLauncher(), ["SKYPILOT_NODE_IPS is not set", "`agentgym launch skypilot RECIPE`"]),
    ],
)
def test_what_is_not_there_is_said_before_anything_starts(launcher: Launcher, words: list[str], programs: Path) -> None:
    with pytest.raises(UserError) as refused:
        launcher.transport()
    assert all(word in str(refused.value) for word in words), refused.value


async def refusal(launcher: Launcher, logs: Path) -> str:
    with pytest.raises(UserError) as refused:
        async with launcher.hosts(logs):
            pass
    return str(refused.value)


async def test_srun_that_fails_is_quoted_with_the_node(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    with pytest.raises(UserError, match="the launcher slurm needs srun, which is not on the PATH of"):
        SlurmLauncher().transport()
    program(programs, "scontrol", SCONTROL)
    program(programs, "srun", 'echo "$*" > "$0.words"; echo "srun: error: node down" >&2; exit 1')
    assert SlurmLauncher().transport() == "tcp://127.0.0.1:0"
    said = await refusal(SlurmLauncher(srun=("--exact",)), programs)
    assert said == "no host process could be started on localhost by srun: srun: error: node down"
    words = (programs / "srun.words").read_text().split()
    assert {"--nodes=1", "--nodelist=localhost", "--exact", "--controller"} <= set(words) and words[-1] == "127.0.0.1"
    assert "node down" in (programs / "localhost.log").read_text()
    program(programs, "scontrol", "echo 'Invalid hostlist' >&2; exit 1")
    assert "`scontrol show hostnames n[1-2]` failed: Invalid hostlist" in await refusal(SlurmLauncher(), programs)


async def test_ssh_that_fails_is_quoted_with_the_machine(programs: Path) -> None:
    config = 'if [ "$1" = -G ]; then echo "hostname 127.0.0.1"; exit; fi; '
    program(programs, "ssh", config + 'echo "me@node1: Permission denied (publickey)." >&2; exit 255')
    launcher = SshLauncher(machines=("me@node1",))
    assert launcher.transport() == "tcp://127.0.0.1:0"
    said = await refusal(launcher, programs)
    assert said == "no host process could be started on me@node1 by ssh: me@node1: Permission denied (publickey)."
    program(programs, "ssh", config + "echo Welcome; exec cat")
    assert "on me@node1 by ssh within 0.05 s: ssh ended" in await refusal(
        SshLauncher(machines=("me@node1",), wait_s=0.05), programs
    )
    program(programs, "ssh", "echo 'Bad configuration' >&2; exit 255")
    with pytest.raises(UserError, match="ssh does not accept 'me@node1': Bad configuration"):
        launcher.transport()


async def test_a_pod_that_is_not_scheduled_is_named(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    launcher = KubernetesLauncher(job="no-such.invalid", num_hosts=1, wait_s=0.3)
    assert launcher.transport().startswith("tcp://")
    said = await refusal(launcher, programs)
    assert said.startswith("host no-such.invalid-0.no-such.invalid does not answer on port 26600 within 0.3 s"), said


async def test_the_nodes_of_a_task_of_skypilot_are_its_hosts(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYPILOT_NODE_IPS", "10.0.0.1\n127.0.0.1\n")
    assert SkyPilotLauncher().nodes() == ["10.0.0.1", "127.0.0.1"]
    assert SkyPilotLauncher().transport() == "tcp://127.0.0.1:0"


async def test_a_command_has_the_time_to_end_by_itself_when_its_launcher_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "END_S", LONG_S)  # on a busy machine a shell may take its time
    script = f"cd {tmp_path}; touch started; cat; touch ended"
    async with AsyncExitStack() as stack:
        starting = asyncio.create_task(start_host("n", ["bash", "-c", script], LONG_S, None, stack))
        await until((tmp_path / "started").exists, timeout_s=LONG_S)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not (tmp_path / "ended").exists()
    assert (tmp_path / "ended").exists()
