"""Where demonstrations come from, and what is said about what can't be used."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from sampled import sampled_turn

from agentgym.env import Environment, Reply
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.loops.sft import batch
from agentgym.models.tiny import policy_path
from agentgym.rl.demonstrations import Demonstration, Written, written
from agentgym.rl.samples import episode_samples
from agentgym.rl.sft_config import SftConfig
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.scoring import Scorer
from agentgym.run.collecting import split
from agentgym.run.demonstrations import Collection, Found, read_episodes, read_file, read_row, write_all
from agentgym.run.oracle import solve_tasks
from agentgym.runs.files import write_json_lines
from agentgym.runs.folder import RunFolder
from agentgym.text.chat import ChatRenderer
from agentgym.text.tokenizer import HuggingFaceTokenizer
from agentgym.types import Episode, Group, Message, Task, ToolTrace

TALK: list[Message] = [{"role": "user", "content": "Say hi."}, {"role": "assistant", "content": "return xs"}]
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}]}


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer(HuggingFaceTokenizer(str(policy_path())))


def rows(path: Path, *lines: Any) -> str:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def test_a_row_is_read_as_others_write_it() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    talk = [TALK[0], CALL, {"role": "tool", "content": "2", "tool_call_id": "x"}, TALK[1]]
    made = read_row(json.dumps({"messages": talk, "tools": tools, "source": "elsewhere"}), "here")
    [call] = made.messages[1]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": {"a": 1}} and made.messages[1]["content"] == ""  # type: ignore[index,call-overload]
    assert made.tools == tuple(tools) and made.messages[2]["tool_call_id"] == "x"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ([1], "it is a list"),
        ({"prompt": "x"}, "messages is missing"),
        ({"messages": []}, "messages is not a list with anything"),
        ({"messages": [{"content": "x"}]}, r"messages\[0\]: role is missing"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "role is 'bot'; allowed are system"),
        ({"messages": [TALK[0], {"role": "assistant"}]}, r"messages\[1\]: content is missing"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "content is a list, not a text"),
        ({"messages": [{**TALK[0], "tool_calls": [{}]}]}, "tool_calls is a list, in messages of the assistant"),
        ({"messages": [TALK[0], {**CALL, "tool_calls": [{"name": "f"}]}]}, r"tool_calls\[0\] is not"),
        (
            {"messages": [{**CALL, "tool_calls": [{"function": {"name": "f", "arguments": "{a"}}]}]},
            "arguments are not JSON",
        ),
        (
            {"messages": [{**CALL, "tool_calls": [{"function": {"name": "f", "arguments": {"a": float("nan")}}}]}]},
            "arguments are not JSON",
        ),
        ({"messages": TALK, "tools": [{"name": "f"}]}, "tools is not a list of"),
        ('{"messages": ' + "1" * 5000 + "}", "it is not JSON"),
    ],
)
def test_a_row_that_is_no_conversation_is_named_with_file_row_and_fault(tmp_path: Path, row: Any, reason: str) -> None:
    path = rows(tmp_path / "talks.jsonl", {"messages": TALK}, "", row)
    collection = Collection(max_skipped_share=0.5)
    read_file(path, collection)
    assert len(collection.found) == 1
    [fault] = collection.faults
    assert fault.startswith(f"{path}, row 3: ")
    with pytest.raises(UserError, match=reason):
        Collection(max_skipped_share=0.0, found=collection.found, faults=collection.faults).check()
    collection.check()


def test_a_tool_that_takes_nothing_needs_no_parameters(renderer: ChatRenderer) -> None:
    row = {"messages": [*TALK], "tools": [{"type": "function", "function": {"name": "look"}}]}
    collection = Collection(max_skipped_share=0.0, found=[Found(demonstration=read_row(json.dumps(row), "here"))])
    [(made, _)] = write_all(collection, renderer, 512)
    assert "look()" in renderer.tokenizer.decode(made.token_ids)


def test_arguments_that_are_too_deep_to_write_are_a_fault(renderer: ChatRenderer) -> None:
    calls = [{"function": {"name": "f", "arguments": '{"a": ' + "[" * 900 + "]" * 900 + "}"}}]
    row = {"messages": [TALK[0], {**CALL, "tool_calls": calls}]}
    collection = Collection(max_skipped_share=1.0)
    collection.found.append(Found(demonstration=read_row(json.dumps(row), "here")))
    written = write_all(collection, renderer, 4096)
    if written:  # newer Pythons write what Python 3.11 does not
        assert renderer.tokenizer.decode(written[0][0].token_ids).count("[" * 900) == 1 and not collection.faults
        return
    assert written == [] and collection.faults[0].startswith("here: ")


def test_a_row_may_contain_separators_that_end_no_line(tmp_path: Path) -> None:
    said = "one\u2028two\x85three"
    row = json.dumps({"messages": [TALK[0], {"role": "assistant", "content": said}]}, ensure_ascii=False)
    (tmp_path / "talks.jsonl").write_text(row + "\n", encoding="utf-8")
    collection = Collection(max_skipped_share=0.0)
    read_file(str(tmp_path / "talks.jsonl"), collection)
    assert [one.demonstration.messages[1]["content"] for one in collection.found] == [said]


def test_the_conversations_that_a_run_kept_are_read_again(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "kept.jsonl.gz", [{"messages": cast(Any, TALK), "tools": [], "held_out": False}])
    collection = Collection(max_skipped_share=0.0)
    read_file(str(tmp_path / "kept.jsonl.gz"), collection)
    assert [list(one.demonstration.messages) for one in collection.found] == [TALK]
    (tmp_path / "torn.jsonl.gz").write_bytes((tmp_path / "kept.jsonl.gz").read_bytes()[:-9])
    with pytest.raises(UserError, match=r"torn.jsonl.gz could not be read"):
        read_file(str(tmp_path / "torn.jsonl.gz"), collection)


def test_more_faults_than_the_share_end_with_a_report_of_the_first() -> None:
    found = [Found(demonstration=Demonstration(name="x", messages=tuple(TALK)))] * 80
    faults = [f"t.jsonl, row {n}: messages is missing" for n in range(20)]
    Collection(max_skipped_share=0.2, found=found, faults=faults).check()
    with pytest.raises(UserError) as raised:
        Collection(max_skipped_share=0.19, found=found, faults=faults).check()
    text = str(raised.value)
    assert text.startswith("20 of 100 conversations can't be used") and "row 9:" in text
    assert "row 10:" not in text and text.endswith("and 10 more")
    with pytest.raises(UserError, match="20 of 20"):
        Collection(max_skipped_share=1.0, faults=faults).check()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"sft.data: .*none.jsonl could not be read"):
        read_file(str(tmp_path / "none.jsonl"), Collection(max_skipped_share=0.1))


def test_what_is_too_long_or_no_episodes_becomes_a_fault(renderer: ChatRenderer) -> None:
    long: list[Message] = [TALK[0], {"role": "assistant", "content": "xyz " * 200}]
    talks = {"good": TALK, "long": long, "twice": [*TALK, TALK[1]]}
    found = [Found(demonstration=Demonstration(name=name, messages=tuple(talk))) for name, talk in talks.items()]
    collection = Collection(max_skipped_share=1.0, found=found)
    made = write_all(collection, renderer, 64)
    assert [one.name for one, _ in made] == ["good"]
    assert [fault.partition(":")[0] for fault in collection.faults] == ["long", "twice"]
    assert "trainer.seq_len is 64" in collection.faults[0] and "two assistant messages" in collection.faults[1]


def saved_run(folder: Path, renderer: ChatRenderer, *, other_tokenizer: bool = False) -> RunFolder:
    """One step of three episodes, which earn 0, 1 and 1, and an evaluation."""

    def episode(number: int, reward: float, split: Any) -> Episode:
        task = Task(task_id=f"t{number}", prompt=(TALK[0],), split=split)
        prompt = renderer.prompt(task.prompt)
        said = (
            *renderer.tokenizer.encode("return"),
            *renderer.tokenizer.encode(" xs"),
            *renderer.end_ids,
        )  # as sampled
        turn = sampled_turn([i + 7 for i in prompt] if other_tokenizer else prompt, said, -0.5)
        return Episode(
            episode_id=f"e{number}", task=task, seed=0, turns=[turn], messages=[*TALK], reward=reward, info={}
        )

    with RunFolder.create(folder, "run") as run:
        episodes = [episode(n, reward, "train") for n, reward in enumerate((0.0, 1.0, 1.0))]
        run.save_groups(1, [Group(group_id=0, task=episodes[0].task, start_version=0, episodes=episodes)])
        run.save_evaluation(1, [[episode(3, 1.0, "test")]])
        return run


def test_saved_episodes_are_chosen_by_reward_and_never_those_of_held_out_tasks(
    tmp_path: Path, renderer: ChatRenderer
) -> None:
    run = saved_run(tmp_path, renderer)
    collection = Collection(max_skipped_share=0.0)
    read_episodes(str(run.path), 1.0, collection)
    assert [one.episode and one.episode.episode_id for one in collection.found] == ["e1", "e2"]
    assert collection.notes == [f"{run.path}: 2 of 3 episodes earn 1 or more; 1 of held-out tasks are left out"]


def test_an_episode_of_the_same_tokenizer_is_imitated_as_it_was_sampled(tmp_path: Path, renderer: ChatRenderer) -> None:
    run = saved_run(tmp_path, renderer)
    collection = Collection(max_skipped_share=0.0)
    read_episodes(str(run.path), 1.0, collection)
    (made, demonstration), _ = write_all(collection, renderer, 512)
    episode = [saved.episode for saved in run.read_episodes(1)][1]
    assert made.sample().token_ids == episode_samples(episode, 1.0)[0].token_ids
    assert made.token_ids != written(demonstration, renderer).token_ids, "sampled tokens are never tokenized again"


def test_each_branch_of_an_episode_is_imitated_as_it_was_sampled(tmp_path: Path, renderer: ChatRenderer) -> None:
    run = saved_run(tmp_path, renderer)
    episode = [saved.episode for saved in run.read_episodes(1)][1]
    [turn] = episode.turns
    again = replace(turn, completion_ids=turn.completion_ids[::-1])
    episode.turns, episode.branches, episode.branch_reasons = [turn, again], [(0,), (1,)], ["sibling"]
    found = Found(demonstration=Demonstration(name="two", messages=tuple(episode.messages)), episode=episode)
    collection = Collection(max_skipped_share=0.0, found=[found])
    made = [one for one, _ in write_all(collection, renderer, 512)]
    assert [tuple(one.token_ids) for one in made] == [tuple(t.prompt_ids) + t.completion_ids for t in (turn, again)]
    assert len(collection.found) == 1 and collection.faults == []
    episode.turns = [replace(one, masked=True) for one in episode.turns]
    assert write_all(Collection(max_skipped_share=1.0, found=[found]), renderer, 512) == []


def test_an_episode_of_another_tokenizer_is_written_from_its_messages(tmp_path: Path, renderer: ChatRenderer) -> None:
    run = saved_run(tmp_path, renderer, other_tokenizer=True)
    collection = Collection(max_skipped_share=0.0)
    read_episodes(str(run.path), 1.0, collection)
    (made, demonstration), _ = write_all(collection, renderer, 512)
    assert made == written(demonstration, renderer)


def test_an_episode_with_calls_is_not_written_again_without_the_tools_that_it_had(
    tmp_path: Path, renderer: ChatRenderer
) -> None:
    run = saved_run(tmp_path, renderer, other_tokenizer=True)
    collection = Collection(max_skipped_share=1.0)
    read_episodes(str(run.path), 1.0, collection)
    called = collection.found[0].episode
    assert called is not None
    called.tool_calls.append(ToolTrace(turn=1, name="look", arguments={}, result="nothing"))
    assert len(write_all(collection, renderer, 512)) == 1
    [fault] = collection.faults
    assert "without its tools" in fault


class Counted(Environment):
    """Say the number; the oracle is wrong about every fifth."""

    name = "counted"
    rewards = {"success": 1.0}

    def tasks(self, split: str, seed: int = 0) -> Iterator[Task]:
        for number in range(20):
            yield Task(task_id=str(number), prompt=({"role": "user", "content": f"Say {number}."},), answer=number)

    async def reply(self, context: Any) -> Reply:
        context.info["success"] = context.messages[-1]["content"] == str(context.task.answer)
        return Reply(done=True)

    def solve(self, task: Task) -> Iterator[Message]:
        yield {"role": "assistant", "content": "?" if task.answer % 5 == 0 else str(task.answer)}  # type: ignore[operator]


class Unsolved(Counted):
    def solve(self, task: Task) -> None:
        return None


def solved(environment: Environment) -> tuple[list[Demonstration], str]:
    async def play() -> tuple[list[Demonstration], str]:
        tasks = list(environment.tasks("train"))
        async with Scorer.of(environment, PluginRegistry.discover()) as scorer:
            return await solve_tasks(environment, tasks, scorer=scorer, sandbox=None, config=RolloutConfig())

    return asyncio.run(play())


def test_the_oracles_failures_are_left_out_and_their_share_is_said() -> None:
    made, note = solved(Counted())
    assert [one.messages[1]["content"] for one in made] == [str(n) for n in range(20) if n % 5]
    assert "succeeds in 16 of 20 tasks" in note and "20.0% do not and are left out: 0 0, 5 0, 10 0" in note


class Raising(Counted):
    def solve(self, task: Task) -> Iterator[Message]:
        if task.answer == 3:
            raise KeyError("three")
        return super().solve(task) if int(task.answer) % 2 else iter(["a text"])  # type: ignore[list-item]


def test_a_solution_that_raises_or_says_no_message_is_left_out_with_its_cause() -> None:
    _, note = solved(Raising())
    assert "succeeds in 7 of 20 tasks" in note and "0 no reward (solve: a script, such as `solve`, yields" in note


def test_an_environment_without_an_oracle_says_what_to_do() -> None:
    with pytest.raises(UserError, match=r"'Unsolved' does not solve its own tasks.*--data"):
        solved(Unsolved())


def test_every_epoch_has_each_conversation_once_in_an_order_of_its_own() -> None:
    talks = [Written(name=str(n), token_ids=written_ids(n), trained=b"\x01") for n in range(10)]
    names = [one.name for step in range(1, 6) for one in batch(talks, step, 4, seed=3)]
    first, second = names[:10], names[10:]
    assert sorted(first) == sorted(second) == [str(n) for n in range(10)] and first != second
    assert names[8:12] == [one.name for one in batch(talks, 3, 4, seed=3)]
    assert [one.name for one in batch(talks, 1, 4, seed=4)] != names[:4]


def written_ids(number: int) -> Any:
    from array import array

    return array("i", [number])


def test_some_are_held_out_and_none_is_in_both_parts() -> None:
    made = list(range(100))
    trained, held_out = split(made, SftConfig(held_out_share=0.05))
    assert len(held_out) == 5 and sorted(trained + held_out) == made
    assert split(made, SftConfig(held_out_share=0.05, seed=1))[1] != held_out
    assert split([1, 2], SftConfig(held_out_share=0.05)) in (([1], [2]), ([2], [1]))
    assert split([1], SftConfig(held_out_share=0.05)) == ([1], [])
