"""`agentgym agents`: what there is, and whether one works."""

from __future__ import annotations

import json
import sys

import pytest

from agentgym.hooks import PluginRegistry

ASKS = """
import json, os, sys, urllib.request
for n in range(2):
    body = {"model": "policy", "messages": [{"role": "user", "content": "x"}], "temperature": 0.5}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
                                     {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    answer = json.load(urllib.request.urlopen(request))
print(answer["choices"][0]["message"]["content"])
"""


@pytest.fixture(autouse=True)
def installed(cli):
    cli.plugins = PluginRegistry.discover


def argv(code: str) -> list[str]:
    return ["--agent.argv", json.dumps([sys.executable, "-c", code])]


def test_the_agents_are_listed_with_what_they_are(cli):
    found = json.loads(cli("agents", "--json").out)
    by_name = {row["name"]: row for row in found}
    assert by_name["command"]["about"].startswith("Any program") and "claude_code" in by_name
    assert "claude_code" in cli("agents").out


def test_a_check_says_what_the_program_asked_for(cli):
    done = cli("agents", "check", "command", "--json", *argv(ASKS))
    found = json.loads(done.out)
    assert (done.code, found["works"], found["stop"], found["calls"]) == (0, True, "done", 4)
    assert found["not_honoured"] == {"overridden_temperature": 4} and found["branch_reasons"] == ["sibling"] * 3


def test_a_check_of_a_program_that_fails_shows_what_it_wrote(cli):
    done = cli("agents", "check", "command", *argv("import sys; sys.exit('no key')"))
    assert done.code == 1 and "no key" in done.out and "kind: exit, message" in done.out


ASKS_ONCE = """
def play(context):
    import json
    from urllib.request import Request, urlopen

    body = json.dumps({"model": context.model, "messages": context.messages}).encode()
    with urlopen(Request(f"{context.url}/v1/chat/completions", body, {"x-api-key": context.key})):
        context.answer("It is ready.")
"""


def test_a_check_says_why_an_agent_that_did_not_fail_does_not_work(cli, tmp_path):
    done = cli("agents", "check", "command", *argv("print('ready')"))
    assert done.code == 1 and "it never asked the policy" in done.out
    (tmp_path / "once.py").write_text(ASKS_ONCE)
    done = cli("agents", "check", "function", "--agent.function", f"{tmp_path}/once.py:play")
    assert done.code == 1 and "which asks for two answers" in done.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["comand"], "command"),
        (["command"], "agent.argv is missing; give a list of str; `agentgym settings agent.command`"),
        (["chat"], "starts no program"),
        (["command", *argv(""), "--seconds", "nan"], "nan"),
    ],
)
def test_what_cannot_be_checked_is_named(cli, words, says):
    done = cli("agents", "check", *words)
    assert done.code == 2 and says in done.err
