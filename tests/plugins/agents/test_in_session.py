"""A program inside a sandbox session plays an episode: it reaches the endpoint with its key, and nothing else."""

from __future__ import annotations

import json

import pytest

from agentgym.agents import AgentFailed
from agentgym.errors import UserError
from agentgym.policies.conversation import CallAnswer
from agentgym.sandbox import SandboxUnavailable
from agentgym.serve.endpoint import Endpoint
from agentgym_plugins.agents.command import Command
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig

PROGRAM = """
import json, os, socket, sys, urllib.error, urllib.request

def ask(key):
    body = json.dumps({"model": os.environ["AGENTGYM_MODEL"], "messages": json.load(open(os.environ["AGENTGYM_TASK"]))["messages"]})
    headers = {"authorization": "Bearer " + key, "content-type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body.encode(), headers)
    try:
        return json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        return error.code

def reach(host, port):
    try:
        socket.create_connection((host, port), timeout=3).close()
    except OSError as error:
        return type(error).__name__
    return "open"

found = {"said": ask(os.environ["OPENAI_API_KEY"]), "other key": ask("sk-other"), "outside": int(sys.argv[1])}
found |= {"host": reach("127.0.0.1", found["outside"]), "web": reach("1.1.1.1", 443), "argv": sys.argv[2:]}
open("answer.txt", "w").write(json.dumps(found))
print("done", file=sys.stderr)
"""  # noqa: E501


class Echo:
    """A policy that says the last message backwards."""

    async def call(self, request):
        said = request.messages[-1]["content"][::-1]
        return CallAnswer(
            content=said, reasoning="", calls=(), finish="stop", prompt_tokens=1, completion_tokens=1, cached_tokens=0
        )


@pytest.fixture
async def leased():
    try:
        await DockerBackend().probe()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    async with DockerBackend(DockerConfig(pool_size=1, spares=0, reap_every_s=1e6)) as docker, docker.session() as one:
        yield one


@pytest.mark.docker
async def test_a_program_inside_reaches_the_policy_with_its_key_and_nothing_else(leased, context) -> None:
    async with Endpoint(bind="127.0.0.1:0", model="policy") as endpoint:
        port = int(endpoint.url.rpartition(":")[2])
        at = context(url=endpoint.url, key=endpoint.admit(Echo()), session=leased)
        command = Command(
            argv=("python3", "-c", PROGRAM, str(port), "{prompt}", "{openai_url}"),
            where="session",
            answer_file="answer.txt",
        )
        assert command.wants_session
        await command.check()
        await command.play(at)
        [answer] = at.answers
        found = json.loads(answer)
        assert found["said"] == "}sey{ yas" and found["other key"] == 401
        inside = int(found["argv"][1].split(":")[2].partition("/")[0])
        assert inside == port or found["host"] == "ConnectionRefusedError"
        assert found["web"] == "OSError" and found["argv"][0] == "say {yes}"
        assert at.notes["exit"] == 0 and at.notes["errors"] == "done\n"
        assert {"answer.txt", "agent-task.json"} <= set(at.notes["files"])
        endpoint.conclude(at.key)
        over = context(url=endpoint.url, key=at.key, session=leased)
        await command.play(over)
        assert json.loads(over.answers[0])["said"] == 409, "an episode that has ended takes nothing more"


@pytest.mark.docker
async def test_what_a_program_inside_does_wrong_is_its_own(leased, context) -> None:
    async with Endpoint(bind="127.0.0.1:0", model="policy") as endpoint:

        async def play(script: str, **settings: object):
            at = context(url=endpoint.url, session=leased)
            with pytest.raises(AgentFailed) as failed:
                await Command(argv=("sh", "-c", script), where="session", **settings).play(at)
            return failed.value, at.notes

        failed, notes = await play("echo lost >&2; exit 3")
        assert failed.kind == "exit" and "exited with 3" in failed.message and notes["errors"] == "lost\n"
        assert (await play("sleep 60", time_s=0.5))[0].kind == "timeout"
        assert (await play("true", answer_file="none.txt"))[0].kind == "no_answer"
        assert (await play("ln -s /etc/passwd a", answer_file="a"))[0].kind == "no_answer"


async def test_an_episode_without_a_session_says_what_to_change(context) -> None:
    with pytest.raises(UserError, match=r"sandbox\.name: docker, or leave agent\.where at process"):
        await Command(argv=("true",), where="session").play(context())
