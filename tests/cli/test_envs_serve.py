"""`agentgym envs serve` as a process, and the commands of docs/bring_your_environment.md against it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

SERVE = "import sys; from agentgym.cli.main import script; sys.exit(script())"


@pytest.fixture(params=[signal.SIGTERM, signal.SIGINT], ids=lambda one: one.name)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of a server, which the signal ends with code 0 while a session may be open."""
    words = ["envs", "serve", "math", "--port", "0", "--split", "test", "--tasks", "32", "--json"]
    server = subprocess.Popen([sys.executable, "-c", SERVE, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        started = json.loads(server.stdout.readline())
        assert (started["environment"], started["tools"], started["tasks"]) == ("math", False, 32)
        yield started["url"]
        server.send_signal(request.param)
        assert server.wait(30) == 0
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def test_a_served_environment_is_shown_and_checked_and_ends_by_a_signal(cli, url: str) -> None:
    name = "agentgym_envs.openenv.environment:OpenEnv"
    shown = cli("envs", "show", name, "--env.options.url", url, "--json")
    assert shown.code == 0 and json.loads(shown.out.splitlines()[0])["task_id"] == "openenv/math/1000000"
    only = ["--only", "oracle,empty,garbage,candidates"]
    options = ["--env.options.url", url, "--env.options.high", "2"]
    check = cli("envs", "check", name, *options, "--tasks", "2", *only, "--json")
    assert check.code == 0, check.err
    report = json.loads(check.out)
    assert report["clean"] and report["probes"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sessions", "0"], "--sessions is 0"),
        (["--port", "70000"], "--port is 70000"),
        (["--idle-s", "0"], "--idle-s is 0"),
        (["--env.name", "math"], "can be set here"),
    ],
)
def test_what_is_given_wrong_is_named(cli, words: list[str], message: str) -> None:
    end = cli("envs", "serve", "math", *words)
    assert end.code == 2 and message in end.err
