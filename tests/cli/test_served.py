"""`agentgym eval openai:NAME` from its words to its tables, with a server of this process; what serve refuses."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from policy_servers import FaultyServer, completion

from agentgym.cli.jobs import Jobs
from agentgym.evals.summary import evaluation_summary
from agentgym.runs.folder import RunFolder
from agentgym.tables.episode_search import search
from agentgym.tables.run import Run

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


def test_shards_that_are_merged_equal_one_evaluation(measure, cli, served: FaultyServer) -> None:
    served.faults = ["500", "odd", "429"]
    whole = measure("--name", "whole", "--tasks", "5")
    assert whole.code == 0, whole.err
    for number in (1, 2):
        words = ("--name", f"part-{number}", "--tasks", "5", "--shard", f"{number}/2", "--policy.concurrency", "2")
        served.faults = ["500"] * 30 if number == 2 else []
        ended = measure(*words, "--policy.max_retries", "6" if number == 1 else "0")
        assert ended.code == (0 if number == 1 else 1), ended.err
    paths = ("evals/part-2", "evals/part-1")
    early = cli("eval", "merge", *paths, "--output", "evals/all")
    assert early.code == 2 and "shard 2/2 in 'evals/part-2' is not finished" in early.err
    served.faults = []
    assert cli("eval", "--resume", "evals/part-2").code == 0
    different = cli("eval", "merge", *paths, "--output", "evals/all")
    assert different.code == 0, "limits of a machine may differ: " + different.err

    def saved(name: str) -> list[tuple[Any, ...]]:
        episodes = RunFolder.open(f"evals/{name}").read_episodes(0, evaluation=True)
        return [(one.group_id, one.index, replace(one.episode, timing_s={}, info={})) for one in episodes]

    assert saved("all") == saved("whole") and len(saved("all")) == 10
    first, second = (json.loads(Path(f"evals/{name}/evals/step-000000.json").read_text()) for name in ("whole", "all"))
    assert first["setup"] == second["setup"]
    for task in [*first["result"]["tasks"], *second["result"]["tasks"]]:
        assert task.pop("seconds") > 0  # a machine's, which differs
    for key in set(first["result"]) - {"usage"}:
        assert first["result"][key] == second["result"][key], key
    assert first["result"]["usage"]["prompt_tokens"] == second["result"]["usage"]["prompt_tokens"]
    compared = cli("compare", "evals/whole", "evals/all")
    assert compared.code == 0 and "the sides differ in nothing" in compared.out
    part = cli("compare", "evals/whole", "evals/part-1")
    assert part.code == 2 and "is shard 1/2 of an evaluation" in part.err


def test_shards_that_do_not_belong_together_are_refused(measure, cli) -> None:
    for name, *words in (
        ("1", "--shard", "1/3"), ("2", "--shard", "2/3"), ("hot", "--shard", "3/3", "--rollout.temperature", "0.5"),
        ("other", "--shard", "3/3", "--seed", "7"), ("half", "--shard", "2/2"), ("whole",),
    ):  # fmt: skip
        assert measure("--name", name, *words).code == 0
    for given, expected in (
        ("1 2", "a shard is missing: 3/3; 2 of 3 are given"),
        ("1", "shards are missing: 2/3, 3/3"),
        ("1 2 2", "shard 2/3 is given twice: evals/2 and evals/2"),
        ("1 2 hot", "rollout.temperature: 1.0 and 0.5"),
        ("1 2 other", "seed: 1000003 and 7"),
        ("1 half", "shards: one of 3 and one of 2"),
        ("1 whole", "'evals/whole' is not a shard: it plays all of its 4 tasks"),
        ("1 nowhere", "no run folder 'evals/nowhere'"),
    ):
        ended = cli("eval", "merge", *(f"evals/{name}" for name in given.split()), "--output", "evals/all")
        assert ended.code == 2 and expected in ended.err and not Path("evals/all").exists(), (given, ended.err)
    late = measure("--name", "none", "--shard", "5/9")
    assert late.code == 2 and "the shard 5/9 has no task" in late.err and not Path("evals/none").exists()
    assert "give a number of a total" in measure("--shard", "3/2").err
    assert measure("--name", "single", "--shard", "1/1").code == 0
    with Path("evals/single/evals/step-000000.jsonl.gz").open("r+b") as file:
        file.truncate(900)
    damaged = cli("eval", "merge", "evals/single", "--output", "evals/all")
    assert damaged.code == 2 and "is damaged: it has" in damaged.err and not Path("evals/all").exists()
    assert "choose another --output" in cli("eval", "merge", "evals/1", "--output", "evals/2").err


def test_prices_that_are_given_later_apply_everywhere_and_without_one_no_cost_is_shown(
    measure, cli, served: FaultyServer
) -> None:
    served.faults = ["odd", "500"]
    first = measure("--name", "one", "--json")
    usage = json.loads(first.out.splitlines()[-1])["usage"]
    assert first.code == 0 and usage["prompt_tokens"] == 800 and not {"cost", "paid_cost"} & set(usage)

    def shown() -> tuple[list[list[str]], Any, dict[str, Any]]:
        listed = cli("runs", "episodes", "evals/one", "--sort", "-cost", "--limit", "2")
        assert listed.code == 0, listed.err
        rows = [line.split() for line in listed.out.splitlines()[2:4]]
        page = search(Run.at(Path("evals/one")).episodes.read(), [("sort", "-cost")])
        return rows, evaluation_summary(RunFolder.open("evals/one"), 0), page

    rows, summary, page = shown()
    assert [row[7:] for row in rows] == [["1", "100", "0", "10", "-", "done"]] * 2
    assert (summary.cost, summary.currency, page["served"]) == (None, "", True)
    assert page["rows"][0]["cost"] is None and (page["rows"][0]["turns"], page["rows"][0]["asked_tokens"]) == (1, 100)
    Path("evals/prices.yaml").write_text("tester: {prompt: 1000, completion: 5000, currency: EUR}\n")
    rows, summary, page = shown()
    assert [row[11:13] for row in rows] == [["0.150000", "EUR"]] * 2
    assert summary.cost == pytest.approx(1.2) == sum(row["cost"] for row in page["rows"])
    assert page["currency"] == "EUR" and "cost 0.150000 EUR" in cli("runs", "episodes", "evals/one", "--show", "1").out
    dearer = measure("--name", "two", "--policy.price_prompt", "1")
    assert "1.2000 EUR" in dearer.out, "the file says what holds now"
    assert "1.2000 EUR" in cli("compare", "evals/one", "evals/two").out
    Path("evals/prices.yaml").write_text("tester@127.0.0.1: {prompt: 0, completion: 0}\ntester: {prompt: 9}\n")
    assert shown()[1].cost == 0.0, "a price of 0 is a price"
    Path("evals/prices.yaml").write_text("tester: {promt: 9}\n")
    wrong = cli("runs", "episodes", "evals/one")
    assert wrong.code == 2 and "prices.yaml, tester: there is no field 'promt'. Did you mean 'prompt'?" in wrong.err


def num_files(folder: str) -> int:
    return sum(path.is_file() for path in Path(folder).rglob("*"))


def test_many_episodes_are_few_files(measure, cli, served: FaultyServer) -> None:
    served.faults = ["500", "429", "odd", "cut", "garbage"] * 4
    ended = measure("--name", "one", "--tasks", "60", "--policy.cache", "evals/one/answers")
    assert ended.code == 0 and num_files("evals/one") <= 20, ended.err
    assert len(list(RunFolder.open("evals/one").read_episodes(0, evaluation=True))) == 120


@pytest.mark.hostile
def test_an_evaluation_of_thousands_that_is_killed_goes_on_with_each_episode_once(cli, served: FaultyServer) -> None:
    """Killed three times while it writes, with a server that fails now and then; half of a line is left each time."""
    count, lock = 0, threading.Lock()

    def says(body: Mapping[str, Any]) -> Mapping[str, Any]:
        nonlocal count
        with lock:
            count += 1
            if count % 20 == 0:
                served.faults.append(("500", "odd", "cut", "garbage", "429 after=0.01;")[count // 20 % 5])
        return completion(f"#### {count}", usage=(100, 10))

    served.says = says
    program = [sys.executable, "-m", "agentgym.cli.main", "eval"]
    options = ["--env", "math", "--tasks", "500", "--samples", "10", "--policy.max_wait_s", "0.05", *NO_SINKS]
    words = ["openai:tester", "--base-url", served.url, "--name", "one", *options]
    part = Path("evals/one/evals/step-000000.part.jsonl")
    for least in (500, 1800, 3500):
        process = subprocess.Popen([*program, *words], stdout=subprocess.DEVNULL)
        while process.poll() is None and not (part.is_file() and part.read_bytes().count(b"\n") >= least):
            time.sleep(0.1)
        assert process.poll() is None, "it ended before it could be killed"
        process.kill()
        process.wait()
        ended = part.read_bytes().splitlines(keepends=True)
        part.write_bytes(b"".join(ended[:-100]))  # their answers are known
        for path in (part, Path("evals/one/answers/answers.jsonl")):
            with path.open("ab") as file:
                file.write(path.read_bytes()[-400:-150].rpartition(b"\n")[2])
        words = ["--resume", "evals/one"]
    assert subprocess.run([*program, *words], stdout=subprocess.DEVNULL).returncode == 0
    saved = [one.episode.episode_id for one in RunFolder.open("evals/one").read_episodes(0, evaluation=True)]
    assert saved == [f"eval-{task:04d}-{sample:02d}" for task in range(500) for sample in range(10)]
    assert num_files("evals/one") <= 20 and asked(served) <= 5000 + 500 + 3 * 8, "what is known is not asked again"
    answers = [json.loads(line)["digest"] for line in Path("evals/one/answers/answers.jsonl").read_text().splitlines()]
    assert len(answers) == len(set(answers)) == 5000


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
