"""Rows of SWE-bench's shape played in Docker: the row's patch earns 1, nothing 0, and so does every cheat."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from harbor_tasks import remove
from played_tasks import DONE, played, running
from swe_repositories import images, repositories

from agentgym_envs.swe.environment import Swe
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.image import reference_of

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.hostile,
    pytest.mark.xdist_group("task containers"),
]
FIX = "sed -i 's/a - b/a + b/' sums.py"
PASSES = """\
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    report = yield
    report.outcome, report.longrepr = "passed", None
    return report
"""
SAYS = "".join(f'print("PASSED tests/test_sums.py::test_{name}")\n' for name in ("add", "text[a b]", "text[d]"))
CHEATS = {
    "conftest.py": f"cat > conftest.py <<'END'\n{PASSES}END",
    "a conftest.py beside the tests": f"cat > tests/conftest.py <<'END'\n{PASSES}END",
    "a plugin by pytest.ini": f"cat > forge.py <<'END'\n{PASSES}END\n"
    "printf '[pytest]\\naddopts = -p forge\\n' > pytest.ini",
    "a plugin by pyproject.toml": f"cat > forge.py <<'END'\n{PASSES}END\n"
    "printf '[tool.pytest.ini_options]\\naddopts = \"-p forge\"\\n' > pyproject.toml",
    "another pytest": f"cat > pytest.py <<'END'\n{SAYS}END",
    "tests changed": "printf 'def test_add():\\n    pass\\n' > tests/test_sums.py",
    "the tests are a link": "mv tests mine; ln -s mine tests; git add -A",
    "a new test of that name": "mkdir -p tests/test_sums; touch tests/test_sums/__init__.py",
    "pytest replaced": f"cat > /usr/lib/python3/dist-packages/pytest/__main__.py <<'END'\n{SAYS}END",
    "git replaced": "printf '#!/bin/sh\\nexit 0\\n' > /usr/local/bin/git",
    "no repository": "rm -rf /testbed; ln -s /tmp /testbed",
}


@pytest.fixture(scope="module")
def made() -> Iterator[list[str]]:
    """Images; they are removed after the sandbox, which keeps containers of them."""
    found: list[str] = []
    yield found
    for image in reversed(found):
        remove(image)


@pytest.fixture(scope="module")
def rows(engine: str, made: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("repositories")
    found = repositories(folder)
    by_name = images(reference_of(()), folder, made)
    found["sums"]["image"] = by_name["sums"]
    found["shapes"]["image_name"] = by_name["shapes"]
    found["words"]["docker_image"] = by_name["words"]
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox(engine: str, made: list[str]) -> AsyncIterator[DockerBackend]:
    config = DockerConfig(pool_size=1, spares=0, spare_sessions=0, max_sessions=2, reap_every_s=1e6)
    async with DockerBackend(config) as backend:
        yield backend


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


def environment(tmp_path: Path, *rows: dict[str, Any]) -> Swe:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return Swe(path=str(path), memory_mib=512)


async def test_a_rows_own_patch_resolves_it_and_nothing_does_not(
    rows: dict[str, dict[str, Any]], sandbox: DockerBackend, tmp_path: Path
) -> None:
    command = f"cd /testbed\ngit apply - <<'END'\n{rows['sums']['test_patch']}END\n"
    ran = "python3 -m pytest -rA tests/test_sums.py"
    scripted = {**rows["sums"], "instance_id": "scripted", "test_cmd": None, "log_parser": "parse_log_pytest_v2"}
    scripted["eval_script"] = f"{command}: '>>>>> Start Test Output'\n{ran}\n: '>>>>> End Test Output'\ngit status\n"
    env = environment(tmp_path, *rows.values(), scripted)
    names = sorted(task.task_id for task in env.tasks("test"))
    assert len(names) == 4
    solved = await played(env, sandbox, [(name, None) for name in names])
    idle = await played(env, sandbox, [(name, [DONE]) for name in names])
    assert [(one.reward, one.success) for one in solved] == [(1.0, True)] * 4, [one.info for one in solved]
    assert [(one.reward, one.info["fail_to_pass"], one.info["pass_to_pass"]) for one in idle] == [(0.0, 0.0, 1.0)] * 4


async def test_an_agent_sees_the_past_and_not_the_future(
    rows: dict[str, dict[str, Any]], sandbox: DockerBackend, tmp_path: Path
) -> None:
    env, future = environment(tmp_path, rows["sums"]), rows["sums"]["future"]
    [task] = env.tasks("test")
    asks = (
        "git log --all --format=%s",
        "git tag; git branch -a; git reflog; git fsck --lost-found",
        f"git show {future}",
    )
    [seen] = await played(env, sandbox, [(task.task_id, running(*asks))])
    log, names, shown = [str(call.result) for call in seen.tool_calls]
    assert log.split("\n") == ["Add sums", "Begin", ""] and names.startswith("* main\n")
    assert not any(word in names for word in ("v2", "other", "trunk", "Fix", "dangling")) and "bad object" in shown


async def test_a_bug_that_was_put_into_a_repository_has_no_commit_of_its_own(
    rows: dict[str, dict[str, Any]], sandbox: DockerBackend, tmp_path: Path
) -> None:
    env = environment(tmp_path, rows["words"])
    [task] = env.tasks("test")
    [seen] = await played(env, sandbox, [(task.task_id, running("git log -p --all; git status --short"))])
    said = str(seen.tool_calls[0].result)
    assert "word.lower" in said and "word.upper" not in said


async def test_no_cheat_resolves_a_row(rows: dict[str, dict[str, Any]], sandbox: DockerBackend, tmp_path: Path) -> None:
    env = environment(tmp_path, rows["sums"])
    episodes = await played(env, sandbox, [("us__sums-1", running(command)) for command in CHEATS.values()])
    assert {name: one.reward for name, one in zip(CHEATS, episodes, strict=True)} == dict.fromkeys(CHEATS, 0.0)
    assert episodes[0].info["flags"] == ["undone: conftest.py"]


async def test_what_is_right_counts_however_the_repository_was_left(
    rows: dict[str, dict[str, Any]], sandbox: DockerBackend, tmp_path: Path
) -> None:
    ways = {
        "committed": f"{FIX}; git add -A; git commit -qm x; git checkout -q -b mine; rm -rf tests",
        "no history": f"{FIX}; rm -rf .git",
        "another history": f"{FIX}; rm -rf .git; git init -q",
        "a module more": "printf 'def add(a, b):\\n    return a + b\\n' > new.py; sed -i '1,2d' sums.py; "
        "sed -i '1i from new import add' sums.py; ln -s /etc/passwd link; printf '\\0\\1' > data.bin",
        "tests of its own": f"{FIX}; printf 'def test_x():\\n    assert 0\\n' > tests/test_sums.py; touch a.log",
    }
    env = environment(tmp_path, rows["sums"])
    episodes = await played(env, sandbox, [("us__sums-1", running(command)) for command in ways.values()])
    assert {name: one.reward for name, one in zip(ways, episodes, strict=True)} == dict.fromkeys(ways, 1.0)
    assert episodes[0].info["patch"] == episodes[1].info["patch"]
