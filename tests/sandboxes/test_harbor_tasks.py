"""Task folders played in Docker: the oracle earns 1, nothing earns 0, and so does every cheat."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from harbor_cheats import CHEATS, PLANT, preload, write
from harbor_tasks import SERVER, TASKS, remove, task_images, write_tasks
from played_tasks import DONE, played, running

from agentgym.testing import play
from agentgym.types import Message, Outcome
from agentgym_envs.harbor.environment import Harbor
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.image import reference_of

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("task containers")]
REAL = (
    "a link to what is expected",
    "a path file",
    "pytest.ini",
    "another pytest",
    "a module before it",
    "pytest changed",
)


@pytest.fixture(scope="module")
def made() -> Iterator[list[str]]:
    """Images; they are removed after the sandbox, which keeps containers of them."""
    images: list[str] = []
    yield images
    for image in reversed(images):
        remove(image)


@pytest.fixture(scope="module")
def quick(busybox: Path, made: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tasks of a busybox alone."""
    images = task_images(busybox, None, tmp_path_factory.mktemp("images"), made)
    return write_tasks(tmp_path_factory.mktemp("quick"), images)


@pytest.fixture(scope="module")
def folder(busybox: Path, made: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    images = task_images(busybox, reference_of(()), tmp_path_factory.mktemp("images"), made)
    return write_tasks(tmp_path_factory.mktemp("tasks"), images)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox(engine: str, made: list[str]) -> AsyncIterator[DockerBackend]:
    """With room for two agents, whose verdicts need further containers."""
    config = DockerConfig(pool_size=1, spares=0, spare_sessions=0, max_sessions=2, reap_every_s=1e6)
    async with DockerBackend(config) as backend:
        yield backend


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


async def test_a_task_is_solved_and_what_a_loop_left_behind_writes_does_not_count(
    quick: Path, sandbox: DockerBackend
) -> None:
    environment = Harbor(path=str(quick / "hello-file"), mode="snapshot")
    loop = running(CHEATS["a loop left behind"][1] + CHEATS["cat replaced"][1])
    solved, idle, forged = await played(environment, sandbox, [("hello-file", one) for one in (None, [DONE], loop)])
    assert (solved.reward, idle.reward, forged.reward) == (1.0, 0.0, 0.0)
    assert solved.success and solved.info["flags"] == [] and forged.info["flags"] == ["undone: /bin/cat"]


@pytest.mark.hostile
@pytest.mark.parametrize("mode", ["snapshot", "carry"])
async def test_every_oracle_earns_one_and_nothing_does_not(folder: Path, sandbox: DockerBackend, mode: str) -> None:
    environment = Harbor(path=str(folder), mode=mode)
    assert len(TASKS) >= 10
    for name, episode in zip(TASKS, await played(environment, sandbox, [(name, None) for name in TASKS]), strict=True):
        assert (name, episode.reward, episode.success) == (name, 1.0, True), episode.info
    idle = await played(environment, sandbox, [(name, [DONE]) for name in TASKS])
    assert {name: one.reward for name, one in zip(TASKS, idle, strict=True)} == {
        name: 0.5 if name == "partial" else 0.0 for name in TASKS
    }
    assert not any(one.success for one in idle)


@pytest.mark.hostile
@pytest.mark.parametrize("mode", ["snapshot", "carry"])
async def test_no_cheat_earns_anything(folder: Path, sandbox: DockerBackend, mode: str, tmp_path: Path) -> None:
    cheats = {**CHEATS, "ld.so.preload": ("fix-sum", preload(tmp_path))}
    assert len(cheats) >= 14
    says = [(task, running(command)) for task, command in cheats.values()]
    episodes = await played(Harbor(path=str(folder), mode=mode), sandbox, says)
    earned = {name: one.reward for name, one in zip(cheats, episodes, strict=True)}
    assert earned == dict.fromkeys(cheats, 0.0)


@pytest.mark.hostile
async def test_cheats_do_earn_where_the_tests_run_in_the_agents_own_container(
    folder: Path, sandbox: DockerBackend
) -> None:
    says = [(CHEATS[name][0], running(CHEATS[name][1])) for name in REAL]
    episodes = await played(Harbor(path=str(folder), mode="live"), sandbox, says)
    assert {name: one.reward for name, one in zip(REAL, episodes, strict=True)} == dict.fromkeys(REAL, 1.0)
    assert all("live" in one.info["flags"] for one in episodes)  # type: ignore[operator]


@pytest.mark.hostile
async def test_no_valid_reward_is_zero_where_the_agent_caused_it(quick: Path, sandbox: DockerBackend) -> None:
    toml = quick / "limits/task.toml"
    toml.write_text(toml.read_text().replace("timeout_sec = 20", "timeout_sec = 4"))
    words = {"nan": "invalid", "big": "missing", "none": "missing", "much": "invalid", "hang": "timeout"}
    says = [("limits", running(f"echo {word} > word")) for word in words]
    episodes = await played(Harbor(path=str(quick / "limits")), sandbox, says)
    found = {word: (one.reward, one.info["flags"]) for word, one in zip(words, episodes, strict=True)}
    assert found == {word: (0.0, [f"no valid reward: {fault}"]) for word, fault in words.items()}


@pytest.mark.hostile
async def test_broken_tests_cost_no_agent_its_reward(
    quick: Path, sandbox: DockerBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = quick / "hello-file"
    toml, tests = task / "task.toml", task / "tests/test.sh"
    toml.write_text(toml.read_text() + '[verifier]\nenv = {BROKEN = "${HARBOR_TEST_BROKEN:-}"}\n')
    tests.write_text(tests.read_text().replace("#!/bin/sh\n", '#!/bin/sh\n[ -z "$BROKEN" ] || exit 1\n'))
    environment = Harbor(path=str(task))
    [solved] = await played(environment, sandbox, [("hello-file", None)])
    assert solved.reward == 1.0
    monkeypatch.setenv("HARBOR_TEST_BROKEN", "yes")
    [task_] = environment.tasks("test")
    broken = await play(environment, task_, environment.solve(task_), sandbox=sandbox, may_break=True)
    assert broken.outcome is Outcome.INFRA_ERROR and broken.reward is None
    assert broken.error is not None and broken.error.kind == "unsupported" and "missing" in str(broken.info["verifier"])


@pytest.mark.hostile
async def test_a_task_whose_oracle_fails_is_left_out_by_name(quick: Path, sandbox: DockerBackend) -> None:
    (quick / "start-script/solution/solve.sh").write_text("echo too bad; exit 3\n")
    environment = Harbor(path=str(quick), tasks=["start-script", "hello-file"])
    task = next(task for task in environment.tasks("test") if task.task_id == "start-script")
    episode = await play(environment, task, [DONE], sandbox=sandbox, may_break=True)
    assert episode.outcome is Outcome.INFRA_ERROR and episode.error is not None
    assert "start-script can't be scored: its oracle does not solve it (solve.sh: exit code 3" in episode.error.message
    again = Harbor(path=str(quick), tasks=["start-script", "hello-file"])
    assert [task.task_id for task in again.tasks("test")] == ["hello-file"]
    assert again.split_note("test").startswith("1 of 2 tasks are left out: start-script: its oracle does not")


def asking(item: str, tool: str = "price") -> Message:
    call = {"type": "function", "function": {"name": tool, "arguments": {"item": item}}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


@pytest.mark.hostile
async def test_tools_of_a_tasks_own_server_are_offered_and_whoever_owns_the_server_earns_nothing_by_it(
    folder: Path, sandbox: DockerBackend
) -> None:
    """The server may be killed, replaced, or told to hang: that is an answer to a call, and the episode is scored."""
    environment = Harbor(path=str(folder / "served"), command_s=10.0)

    def buys() -> Generator[Message, tuple[Message, ...], None]:
        [said] = yield asking("lamp")
        yield running(f"echo '{said['content']}' > price")[0]
        yield DONE

    kill = "for p in /proc/[0-9]*; do grep -qa ^python3 $p/cmdline && kill -9 ${p#/proc/}; done; "
    planted = SERVER.replace("for line", f"os.system({PLANT!r})\nfor line").replace("sum(map(ord, item))", "1")
    replaced = running(kill + write("/app/server.py", planted))[0]
    says = {
        "uses it": buys(),
        "replaces it": [replaced, asking("lamp"), asking("lamp"), *running("echo 1 cents > price")],
        "kills it": [running(kill)[0], asking("lamp"), asking("lamp"), DONE],
        "removes it": [
            running(kill + "rm server.py")[0],
            asking("lamp"),
            asking("lamp"),
            *running("echo 426 cents > price"),
        ],
        "hangs it": [asking("patience"), asking("lamp"), DONE],
        "floods": [asking("flood"), asking("lamp", "shop_bash"), DONE],
        "wrong": [asking("lamp", "nothing"), DONE],
    }
    episodes = await played(environment, sandbox, [("served", script) for script in says.values()])
    found = {
        name: (one.reward, [call.result for call in one.tool_calls]) for name, one in zip(says, episodes, strict=True)
    }
    assert {name: reward for name, (reward, _) in found.items()} == {
        name: float(name in ("uses it", "removes it")) for name in says
    }
    results = {
        name: [text for text in texts if text and not text.startswith("[exit")] for name, (_, texts) in found.items()
    }
    died = "Error: the MCP server 'shop' died in a call of price"
    assert results["uses it"] == ["426 cents"]
    assert [results[name][0][: len(died)] for name in ("replaces it", "kills it", "removes it")] == [died] * 3
    assert (results["replaces it"][1], results["kills it"][1]) == ("1 cents", "426 cents")  # it was started again
    assert "the MCP server 'shop' did not start" in results["removes it"][1]
    assert "did not answer within" in results["hangs it"][0] and results["hangs it"][1] == "426 cents"
    assert results["floods"][0].startswith("Error: the MCP server 'shop' died") and results["floods"][1] == "426 cents"


@pytest.mark.hostile
async def test_a_server_that_does_not_start_is_the_tasks_fault_and_scores_nobody(
    folder: Path, sandbox: DockerBackend
) -> None:
    (folder / "served/environment/server.py").write_text("raise SystemExit('no shop today')\n")
    environment = Harbor(path=str(folder / "served"), oracle=False)
    [task] = environment.tasks("test")
    episode = await play(environment, task, [DONE], sandbox=sandbox, may_break=True)
    assert episode.outcome is Outcome.INFRA_ERROR and episode.reward is None and episode.error is not None
    assert "served: the MCP server 'shop' did not start" in episode.error.message
    assert "no shop today" in episode.error.message
