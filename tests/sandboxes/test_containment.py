"""Every snippet of the hostile suite is contained in Docker, one test each; the suite runs on other backends too."""

from __future__ import annotations

import textwrap
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from served import ServedBackend

from agentgym.sandbox import Limits, RunResult, RunStatus
from agentgym_sandboxes.audit import task_profile
from agentgym_sandboxes.audit.findings import Outcome
from agentgym_sandboxes.audit.host import Host
from agentgym_sandboxes.audit.suite import SNIPPETS
from agentgym_sandboxes.audit.trial import Trial
from agentgym_sandboxes.audit.verify import Examiner, verify
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.monty.backend import MontyBackend

pytestmark = [pytest.mark.hostile, pytest.mark.asyncio(loop_scope="session")]

NOT_PROMISED = {"loopback_of_a_neighbour"}  # calls of one container share its loopback interface


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def examiner(docker: DockerBackend) -> AsyncIterator[Examiner]:
    with Host() as host:
        yield Examiner(docker, await docker.probe(), host)


@pytest.mark.docker
@pytest.mark.parametrize("trial", SNIPPETS, ids=lambda trial: trial.name)
async def test_it_is_contained_and_leaves_nothing(examiner: Examiner, trial: Trial) -> None:
    finding = await examiner.examine(trial)
    allowed = {Outcome.CONTAINED} | ({Outcome.NOT_CLAIMED} if trial.name in NOT_PROMISED else set())
    assert finding.outcome in allowed, finding.detail


@pytest.mark.docker
@pytest.mark.parametrize("trial", task_profile.TRIALS, ids=lambda trial: trial.name)
async def test_the_container_of_a_task_holds_what_it_promises(examiner: Examiner, trial: Trial) -> None:
    finding = await examiner.examine(trial)
    is_promised = trial.name.removeprefix(task_profile.PREFIX) not in task_profile.NOT_PROMISED
    assert finding.outcome is (Outcome.CONTAINED if is_promised else Outcome.NOT_CLAIMED), finding.detail


async def test_monty_holds_or_can_not_even_try(monty: MontyBackend) -> None:
    report = await verify(monty, only=[trial.name for trial in SNIPPETS])
    assert report.holds, report.findings
    assert report.counts()[Outcome.CONTAINED] >= 5


@pytest.mark.slow
@pytest.mark.xdist_group("bubblewrap")  # it looks at no container
async def test_bubblewrap_holds(bubblewrap: ServedBackend) -> None:
    report = await verify(bubblewrap, only=[trial.name for trial in SNIPPETS])
    assert report.holds, report.findings
    assert report.counts()[Outcome.CONTAINED] >= 120


class Still:
    """Stands still for the whole time of the first calls."""

    def __init__(self, num_still: int) -> None:
        self.num_still = num_still

    async def run(self, code: str, *, stdin: str, limits: Limits) -> RunResult:
        self.num_still -= 1
        stdout = "" if self.num_still >= 0 else "made: start: \nescaped: time: came to its end\n"
        return RunResult(status=RunStatus.TIMEOUT, exit_code=None, stdout=stdout, stderr="")


async def test_a_program_that_never_ran_is_run_again_and_is_never_contained() -> None:
    [trial] = [trial for trial in SNIPPETS if trial.name == "sleep"]
    outcomes = [
        (await trial.attempt(Still(num), Host())).outcome  # type: ignore[arg-type]
        for num in (0, 1, 3, 100)
    ]
    assert outcomes == [Outcome.ESCAPED] * 3 + [Outcome.BROKEN]


@pytest.mark.docker
async def test_what_is_contained_does_not_hinder_a_plain_program(docker: DockerBackend) -> None:
    """Input, exit codes, threads, exit handlers, renames, standard streams by name, a home of its own."""
    code = """
        import atexit, os, sys, threading, time
        atexit.register(lambda: print("exit"))
        threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
        print(input())
        os.makedirs("a/b"); os.mkdir("c")
        with open("a/b/x", "w") as file: file.write("text")
        os.rename("a/b/x", "c/x"); os.link("c/x", "a/y")
        with open("/dev/stderr", "w") as file: file.write(open("a/y").read())
        assert os.path.expanduser("~") == os.getcwd()
        sys.exit(7)
    """
    result = await docker.run(textwrap.dedent(code), stdin="hello\n")
    assert (result.exit_code, result.stdout, result.stderr) == (7, "hello\nthread\nexit\n", "text")
    echoed = await docker.run("import sys\nprint(len(sys.stdin.read()))", stdin="x" * 1_000_000)
    assert echoed.stdout == "1000000\n"
