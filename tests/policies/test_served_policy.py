"""A server is asked as often and as fast as it allows, and what it says is understood; over real connections too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from policy_servers import FaultyServer, ScriptedServer, completion

from agentgym.config import build
from agentgym.errors import InfraError, UserError
from agentgym.policies.outside.answers import (
    ChatRequest,
    ContextFull,
    Filtered,
    RequestRefused,
    ServerFault,
    Unsupported,
    read_answer,
)
from agentgym.policies.outside.cache import AnswerCache
from agentgym.policies.outside.config import PolicyConfig
from agentgym.policies.outside.openai_server import OpenAIServer
from agentgym.policies.outside.pace import Pace
from agentgym.policies.outside.policy import LOST_IN_A_ROW, ServedPolicy, ServerGone
from agentgym.testing import fast

URL = "http://127.0.0.1:1/v1"
REQUEST = ChatRequest(
    model="tester", messages=({"role": "user", "content": "7?"},), max_tokens=9, temperature=1.0, seed=1
)


def policy(server: Any, **settings: Any) -> ServedPolicy:
    config = PolicyConfig(**{"base_url": URL, "max_retries": 3, **settings})
    return ServedPolicy(model="tester", config=config, server=server, cache=AnswerCache(None, config.url))


@fast
async def test_no_more_requests_are_in_flight_than_allowed() -> None:
    server = ScriptedServer([completion("7")], takes_s=1.0)
    one = policy(server, concurrency=3)
    await asyncio.gather(*(one.answer(REQUEST) for _ in range(10)))
    assert server.most_at_once == 3 and asyncio.get_running_loop().time() == pytest.approx(4.0)


@fast
async def test_no_minute_has_more_requests_or_tokens_than_allowed() -> None:
    clock = asyncio.get_running_loop().time
    begun: list[float] = []
    pace = Pace(requests=3)
    for _ in range(7):
        await pace.begin(0)
        begun.append(clock())
    assert all(later - sooner >= 60 for sooner, later in zip(begun, begun[3:], strict=False)) and begun[-1] < 130
    pace, start = Pace(tokens=100), clock()
    for used in (90, 30, 60, 500, 1):
        asked = await pace.begin(10)
        pace.settle(asked, used)  # what a request took counts, not what was expected of it
        begun.append(clock() - start)
    assert begun[-5:] == pytest.approx([0, 0, 60, 60, 120])


@fast
async def test_a_busy_server_is_asked_by_nobody_before_it_wants_to_be() -> None:
    server = ScriptedServer([ServerFault("429", retry_after_s=30.0, busy=True), completion("7")])
    one, clock = policy(server), asyncio.get_running_loop().time
    first = asyncio.create_task(one.answer(REQUEST))
    await asyncio.sleep(1)
    await one.answer(REQUEST)
    assert clock() == pytest.approx(30.0) and len(server.asked) == 3
    answered = await first
    assert answered.waited_s == pytest.approx(30.0) and one.counts["retries"] == 1


@fast
async def test_a_server_that_asks_for_too_long_a_wait_has_failed() -> None:
    one = policy(ScriptedServer([ServerFault("429", retry_after_s=4000.0, busy=True)]))
    with pytest.raises(InfraError, match=r"4000 s, policy\.max_wait_s is 300"):
        await one.answer(REQUEST)


@fast
async def test_a_server_that_is_gone_ends_the_evaluation_and_one_bad_request_does_not() -> None:
    one = policy(ScriptedServer([ServerFault("no route")]), max_retries=0)
    for _ in range(LOST_IN_A_ROW - 1):
        with pytest.raises(InfraError) as lost:
            await one.answer(REQUEST)
        assert not isinstance(lost.value, ServerGone)
    with pytest.raises(ServerGone):
        await one.answer(REQUEST)


@fast
async def test_what_changes_nothing_about_the_measure_is_left_out_and_the_rest_is_the_users() -> None:
    def picky(body: Mapping[str, Any]) -> Mapping[str, Any]:
        for name in ("seed", "max_tokens"):
            if name in body:
                raise Unsupported(name, "not here")
        return completion("7")

    server = ScriptedServer([picky])
    one = policy(server)
    await asyncio.gather(*(one.answer(REQUEST) for _ in range(8)))
    assert "seed" not in server.asked[-1] and server.asked[-1]["max_completion_tokens"] == 9
    with pytest.raises(UserError, match=r"--policy\.omit \[temperature\]"):
        await policy(ScriptedServer([Unsupported("temperature", "only 1")])).answer(REQUEST)
    server = ScriptedServer([completion("7")])
    await policy(server, omit=("temperature",)).answer(REQUEST)
    assert "temperature" not in server.asked[0]


def test_answers_are_known_by_all_of_a_request_its_seed_and_the_server(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path, URL, by="a")
    cache.keep(REQUEST, completion("7"), {"prompt_tokens": 3})
    assert cache.find(REQUEST) == (completion("7"), "a", {"prompt_tokens": 3})
    for other in ({"seed": 2}, {"temperature": 0.0}, {"max_tokens": 8}, {"model": "b"}, {"options": {"x": 1}}):
        assert cache.find(replace(REQUEST, **other)) is None
    assert AnswerCache(tmp_path, f"{URL}/2").find(REQUEST) is None


def test_answers_share_one_file_between_writers_and_outlast_a_torn_end_and_a_lost_index(tmp_path: Path) -> None:
    a, b = AnswerCache(tmp_path, URL, by="a"), AnswerCache(tmp_path, URL, by="b")
    requests = [replace(REQUEST, seed=seed) for seed in range(8)]
    for number, request in enumerate(requests[:6]):
        (a, b)[number % 2].keep(request, completion(str(number)), {})
    index, file = sorted(tmp_path.iterdir())
    assert (index.name, file.name) == ("answers.index", "answers.jsonl")

    def known(cache: AnswerCache) -> list[str]:
        found = [cache.find(request) for request in requests]
        return [one.body["choices"][0]["message"]["content"] for one in found if one is not None]  # type: ignore

    assert known(a) == known(b) == known(AnswerCache(tmp_path, URL)) == list("012345")
    whole, entries = file.read_bytes(), index.read_bytes()
    for torn, of_index in ((whole[:-9], entries), (whole, entries[:-9]), (whole, b""), (whole[:-9], entries[:70])):
        file.write_bytes(torn)
        index.write_bytes(of_index)
        expected = list("012345")[: torn.count(b"\n")]
        again = AnswerCache(tmp_path, URL, by="c")
        assert known(again) == expected
        again.keep(requests[6], completion("6"), {})
        assert known(again) == known(AnswerCache(tmp_path, URL)) == [*expected, "6"]
        assert len(index.read_bytes()) == 32 * (len(expected) + 1)
        assert [json.loads(line)["by"] for line in file.read_text().splitlines()][-1] == "c", "no half line is left"
    file.write_bytes(b"".join(reversed(whole.splitlines(keepends=True))))
    index.write_bytes(entries)
    assert known(AnswerCache(tmp_path, URL)) == [], "the index is of another file of this size"
    file.unlink()
    again.keep(requests[7], completion("7"), {})
    assert known(again) == known(AnswerCache(tmp_path, URL)) == ["7"], "the others were removed meanwhile"


def test_answers_of_a_folder_with_a_file_each_are_still_known(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path, URL, by="b")
    cache.keep(REQUEST, completion("8"), {})
    name = json.loads((tmp_path / "answers.jsonl").read_text())["digest"]
    for path in tmp_path.iterdir():
        path.unlink()
    (tmp_path / name[:2]).mkdir()
    old = {"format": 1, "by": "a", "body": completion("7")}
    (tmp_path / name[:2] / f"{name}.json").write_text(json.dumps(old))
    assert AnswerCache(tmp_path, URL, by="b").find(REQUEST) == (completion("7"), "a", {})


def test_what_servers_write_differently_is_read() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "7"}]
    answer = read_answer(completion(parts, ("f", {"a": 1}), finish="eos"), REQUEST)  # type: ignore[arg-type]
    assert (answer.content, answer.reasoning, answer.finish) == ("7", "hm", "stop")
    assert answer.calls[0].arguments == {"a": 1}  # type: ignore[union-attr]
    assert read_answer(completion("7", usage=(10, 10**4000)), REQUEST).usage.completion_tokens == 0
    for odd in (None, [], {"choices": []}, {"choices": [{"message": None}]}, {"error": "x"}):
        with pytest.raises(ServerFault, match="not a chat completion"):
            read_answer(odd, REQUEST)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"base_url": "127.0.0.1:8000"}, "address of a server"),
        ({"base_url": "https://me:secret@host/v1"}, "api_key_env"),
        ({"concurrency": 0}, "at least 1"),
        ({"omit": ["sead"]}, "'sead'"),
        ({"options": {"temperature": 2}}, "rollout.temperature"),
        ({"price_prompt": -1.0}, "at least 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, object], expected: str) -> None:
    with pytest.raises(UserError, match=expected) as refused:
        build(PolicyConfig, settings)
    assert "secret" not in str(refused.value)


def test_a_key_goes_to_openai_and_else_only_where_it_is_sent() -> None:
    assert PolicyConfig().key_variable == "OPENAI_API_KEY" and PolicyConfig().url == "https://api.openai.com/v1"
    assert PolicyConfig(base_url="http://10.0.0.7:8000/").key_variable == ""
    assert PolicyConfig(base_url="http://10.0.0.7:8000/").url == "http://10.0.0.7:8000/v1"
    assert PolicyConfig(base_url="https://a.vendor/api/v3", api_key_env="KEY").key_variable == "KEY"
    near = ["http://localhost:1", "http://10.0.0.7:8000", "http://[::1]:80", "http://gpu3:80", "http://gpu.local"]
    assert all(PolicyConfig(base_url=url).is_near for url in near)
    assert not any(PolicyConfig(base_url=url).is_near for url in ("", "https://8.8.8.8", "https://a.vendor/v1"))


async def test_every_fault_of_a_server_is_survived() -> None:
    """Those that pass: busy, failed, cut, silent, and answers that are no answers. Each once, then it answers."""
    faults = ["429 after=0.01;", "500", "502 <html>bad gateway</html>", "cut", "hang", "garbage", "odd", "503 after=0;"]
    faults += [f"200 {'[' * 5000}", f"200 {'9' * 5000}"]  # deeper, and longer, than Python reads
    async with FaultyServer(list(faults)).open() as faulty:
        server = OpenAIServer(faulty.url, "", timeout_s=0.3)
        one = policy(server, base_url=faulty.url, max_retries=len(faults), max_wait_s=0.02)
        answered = await one.answer(REQUEST)
        await server.close()
    assert answered.answer.content == "yes" and one.counts["retries"] == len(faults) and faulty.faults == []
    bodies = [body for _, _, body in faulty.seen]
    assert all(body == bodies[0] for body in bodies) and bodies[0]["seed"] == 1


@pytest.mark.parametrize(
    ("fault", "kind", "expected"),
    [
        ("401", UserError, "wants a key .*--api-key-env"),
        ('404 {"error": {"message": "The model `tester` does not exist."}}', UserError, "no model 'tester'.*Available"),
        ("404 nothing here", UserError, "not an OpenAI-compatible server"),
        ("page", UserError, "not an OpenAI-compatible server"),
        ('429 {"error": {"message": "pay", "code": "insufficient_quota"}}', UserError, "no more requests"),
        ('400 {"error": {"message": "no", "code": "context_length_exceeded"}}', ContextFull, "no"),
        ('400 {"error": {"message": "max_tokens is too large: 9"}}', UserError, "rollout.max_turn_tokens"),
        ('400 {"error": {"message": "no", "code": "content_filter"}}', Filtered, "no"),
        ('400 {"error": {"message": "half \\ud83d"}}', RequestRefused, "half \ufffd"),
    ],
)
async def test_what_a_status_means_is_said_in_one_sentence(fault: str, kind: type[Exception], expected: str) -> None:
    async with FaultyServer([fault]).open() as faulty:
        server = OpenAIServer(faulty.url, "", timeout_s=5)
        with pytest.raises(kind, match=expected) as raised:
            await policy(server, base_url=faulty.url).answer(REQUEST)
        await server.close()
    assert "\n" not in str(raised.value)


async def test_a_server_is_checked_before_anything_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-somebody")
    async with FaultyServer().open() as faulty:
        server = OpenAIServer(faulty.url, "sesame", key_variable="KEY", timeout_s=5)
        assert "lists 'tester'" in await policy(server, base_url=faulty.url).check()
        assert [first.split()[1] for first, _, _ in faulty.seen] == ["/v1/models"]
        assert faulty.seen[0][1]["authorization"] == "Bearer sesame" and "openai-organization" not in faulty.seen[0][1]
        faulty.lists, faulty.faults = '{"data": [{"id": "tester-7b"}]}', ['404 {"error": {"message": "no model"}}']
        with pytest.raises(UserError, match="Did you mean 'tester-7b'"):
            await policy(server, base_url=faulty.url).check()
        faulty.lists = json.dumps({"hello": "world"})
        with pytest.raises(UserError, match="not an OpenAI-compatible server"):
            await policy(server, base_url=faulty.url).check()
        await server.close()
        gone = faulty.url
    server = OpenAIServer(gone, "", timeout_s=5)
    with pytest.raises(UserError, match=r"could not be reached: .*Is it running"):
        await policy(server, base_url=gone).check()
    await server.close()
