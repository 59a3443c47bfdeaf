"""`agentgym eval openai:NAME` from its words to its tables, with a server of this process; what serve refuses."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from policy_servers import FaultyServer, completion

from agentgym.cli.jobs import Jobs
from agentgym.runs.folder import RunFolder

NO_SINKS = ("--set", "logging.sinks=[]")


def answers(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Right for every second number."""
    number = int(body["messages"][0]["content"].split()[-1].rstrip("?"))
    return completion(str(number + number % 2), usage=(100, 10))


@pytest.fixture
def served() -> Iterator[FaultyServer]:
    """In a loop and thread of its own: the command has the main one."""
    server, loop = FaultyServer(says=answers), asyncio.new_event_loop()
    opened = server.open()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(opened.__aenter__(), loop).result()
    yield server
    asyncio.run_coroutine_threadsafe(opened.__aexit__(None, None, None), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def measure(cli, served: FaultyServer):
    cli.jobs = Jobs()

    def run(*words: str, model: str = "tester") -> Any:
        where = ("--base-url", served.url, "--env", "counting", "--tasks", "4", "--samples", "2")
        limits = ("--policy.max_wait_s", "0.01", "--rollout.max_turns", "1", *NO_SINKS)
        return cli("eval", f"openai:{model}", *where, *limits, *words)

    return run


def asked(served: FaultyServer) -> int:
    return sum("chat/completions" in first for first, _, _ in served.seen)


def test_a_served_policy_is_measured_in_the_same_tables_with_its_cost(measure, cli, served: FaultyServer) -> None:
    prices = ("--policy.price_prompt", "1000", "--policy.price_completion", "5000")
    ended = measure("--name", "one", *prices)
    assert ended.code == 0, ended.err
    assert "success is unknown" in ended.out and "openai:tester" in ended.out
    assert "1.2000 USD" in ended.out and asked(served) == 8  # (100 * 1000 + 10 * 5000) / 1e6 a turn
    folder = RunFolder.open("evals/one")
    saved = folder.read_episodes(0, evaluation=True)
    seeds = {body["seed"] for _, _, body in served.seen if body}
    assert len(list(saved)) == 8 and len(seeds) == 8
    listed = cli("runs", "episodes", "evals/one", "--evals", "--show", "1")
    assert listed.code == 0 and "what follows" in listed.out
    again = measure("--name", "two")
    assert again.code == 0 and asked(served) == 16  # of a server near by, whose weights may be others by now
    compared = cli("compare", "evals/one", "evals/two")
    assert compared.code == 0 and "from the cache" in compared.out, compared.err
    assert "1.2000 USD" in compared.out and "0.0000" not in again.out + compared.out, "two has no price"


@pytest.mark.parametrize("num_saved", [0, 4])
def test_an_evaluation_that_was_killed_pays_for_nothing_twice(
    measure, cli, served: FaultyServer, num_saved: int
) -> None:
    """The server dies when a quarter of the answers are there."""
    served.faults = ["", "", "", "", *["500"] * 40]
    ended = measure("--name", "one", "--tasks", "8", "--policy.max_retries", "1", "--policy.concurrency", "1")
    assert ended.code == 1 and "continue it: agentgym eval --resume evals/one" in ended.err
    served.faults = []
    for part in Path("evals/one/evals").glob("*.part.jsonl"):  # as if it had been killed before it could save them
        part.write_text("".join(part.read_text().splitlines(keepends=True)[:num_saved]))
    before = asked(served)
    resumed = cli("eval", "--resume", "evals/one", "--json")
    assert resumed.code == 0 and asked(served) == before + 12
    usage = json.loads(resumed.out.splitlines()[-1])["usage"]
    assert (usage["turns"], usage["paid_prompt_tokens"], usage["prompt_tokens"]) == (16, 1600, 1600)
    assert usage["turns_from_cache"] == 4, "what was not asked for again is not called new"


def test_answers_are_shared_between_evaluations_where_that_is_asked_for(measure, served: FaultyServer) -> None:
    for name, turns in (("one", "0"), ("two", "8")):
        ended = measure("--name", name, "--policy.cache", "kept", "--json")
        usage = json.loads(ended.out.splitlines()[-1])["usage"]
        assert ended.code == 0 and usage["turns_from_cache"] == float(turns)
    assert asked(served) == 8


def test_a_plan_contacts_nobody_and_a_check_asks_once(measure, served: FaultyServer) -> None:
    plan = measure("--dry-run")
    assert plan.code == 0 and "Nothing was started" in plan.out and served.url in plan.out and served.seen == []
    check = measure("--check")
    assert check.code == 1 and "Traceback" not in check.err  # this server reads a number in every message
    served.says = lambda body: completion("OK")
    check = measure("--check")
    assert check.code == 0 and "lists 'tester'" in check.out and not Path("evals").exists(), check.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("eval", "openai:x"), "OPENAI_API_KEY is empty or not set"),
        (("eval", "openai:x", "--base-url", "nowhere"), "address of a server"),
        (("eval", "openai:", "--base-url", "http://127.0.0.1:1"), "has no name"),
        (("eval", "openai:x", "--base-url", "http://127.0.0.1:1"), "could not be reached"),
        (("eval", "builtin:tiny", "--base-url", "http://127.0.0.1:1"), "begins with openai:"),
        (("train", "--model.path", "openai:x"), "but its weights are not here"),
        (("serve", "openai:x"), "but its weights are not here"),
        (("serve",), "arguments are required: CHECKPOINT"),
        (("serve", "builtin:tiny", "--host", "0.0.0.0"), "give a key of your own with --key-file"),
        (("serve", "builtin:tiny", "--port", "99999"), "give 0 to 65535"),
        (("serve", "builtin:tiny", "--key-file", "short"), "holds no key"),
        (("chat",), "arguments are required: CHECKPOINT"),
        (("chat", "builtin:tiny", "--json"), "for a script"),
    ],
)
def test_mistakes_are_said_in_one_sentence(
    cli, words: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    Path("short").write_text("secret\n", encoding="utf-8")
    cli.jobs = Jobs()
    ended = cli(*words, "--env", "counting", *NO_SINKS)
    assert ended.code == 2 and expected in ended.err, ended.err
    assert "secret" not in ended.err and len(ended.err.strip().splitlines()) == 1 and not list(Path("evals").glob("*"))
