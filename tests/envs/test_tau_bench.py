"""tau-bench's customers, data and check, on a small package in its layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmark_packages import write_tau_bench

from agentgym.errors import UserError
from agentgym.testing import play
from agentgym_envs.benchmarks.functions import call_message
from agentgym_envs.tau_bench.arithmetic import compute
from agentgym_envs.tau_bench.environment import TauBenchEnvironment
from agentgym_envs.tau_bench.records import Records, freeze

pytestmark = pytest.mark.usefixtures("fresh_packages")


def made(folder: Path, **options: object) -> tuple[TauBenchEnvironment, dict]:
    write_tau_bench(folder)
    environment = TauBenchEnvironment(path=str(folder), **options)
    return environment, {task.answer["case"]: task for task in environment.tasks("test")}


async def test_gold_succeeds_and_nothing_fails(tmp_path: Path) -> None:
    environment, tasks = made(tmp_path)
    assert sorted(tasks) == [f"retail/test/{index}" for index in range(5)]
    for task in tasks.values():
        gold, nothing = await play(environment, task, environment.solve(task)), await play(environment, task, [""])
        assert (gold.success, gold.reward) == (True, 1.0) and (nothing.success, nothing.reward) == (False, 0.0)


async def test_the_first_message_is_the_whole_request_and_a_text_ends_it(tmp_path: Path) -> None:
    environment, tasks = made(tmp_path)
    task = tasks["retail/test/0"]
    assert task.prompt[0]["content"].startswith("Be kind.") and task.prompt[1]["content"].endswith("Cancel #1.")
    episode = await play(environment, task, [call_message(("cancel", {"order_id": "#1"})), "Done.", "And?"])
    assert episode.success and episode.stop == "done" and episode.messages[-1]["content"] == "Done."


@pytest.mark.parametrize(
    ("case", "says", "right"),
    [
        (0, [call_message(("cancel", {"order_id": "#2"})), ""], (False, True)),
        (0, [call_message(("cancel", {"order_id": "#1"}), ("cancel", {"order_id": "#2"})), ""], (False, True)),
        (0, [call_message(("get_order", {"order_id": "#1"})), ""], (False, True)),
        (1, ["It costs $1,200."], (True, True)),
        (1, ["It costs 12000?"], (True, True)),  # the benchmark's own rule: the text is somewhere in it
        (1, ["It costs 1 200."], (True, False)),
        (2, ["It is pending."], (True, False)),  # nobody looked
        (2, [call_message(("get_order", {"order_id": "#2"})), "Yes."], (True, True)),
    ],
)
async def test_data_and_texts_are_checked(tmp_path: Path, case: int, says, right) -> None:
    environment, tasks = made(tmp_path)
    episode = await play(environment, tasks[f"retail/test/{case}"], says)
    assert (episode.info["data_right"], episode.info["outputs_right"]) == right and episode.success is all(right)


async def test_passing_the_customer_on_ends_the_conversation(tmp_path: Path) -> None:
    environment, tasks = made(tmp_path)
    passed = call_message(("transfer_to_human_agents", {"summary": "so"}), content="I am sorry.")
    episode = await play(environment, tasks["retail/test/4"], [passed, "sorry, too late"])
    assert episode.success and episode.stop == "done" and episode.messages[-1]["role"] == "tool"


async def test_an_agents_sum_is_computed_and_not_evaluated(tmp_path: Path) -> None:
    environment, tasks = made(tmp_path)
    sums = [call_message(("calculate", {"expression": text})) for text in ("2 * (3 + 0.5) - 1", "9**9**9**9")]
    episode = await play(environment, tasks["retail/test/0"], [*sums, ""])
    assert [(trace.result.partition(":")[0], trace.error) for trace in episode.tool_calls] == [
        ("6.0", ""), ("Error", "tool"),
    ]  # fmt: skip


async def test_a_loop_over_shared_records_cannot_change_them(tmp_path: Path) -> None:
    environment, tasks = made(tmp_path)
    episode = await play(environment, tasks["retail/test/0"], [call_message(("tidy", {})), ""])
    assert episode.tool_calls[0].result.endswith("look it up by its key")
    assert (await play(environment, tasks["retail/test/0"], environment.solve(tasks["retail/test/0"]))).success


def test_faulty_and_unverifiable_tasks_are_left_out_and_listed(tmp_path: Path) -> None:
    environment, _ = made(tmp_path)
    trained = {task.answer["case"] for task in environment.tasks("train")}
    assert trained == {f"retail/train/{index}" for index in (0, 1, 2, 4)}
    assert environment.left_out("train") == {"unverifiable": ("retail/train/5",), "faulty": ("retail/train/3",)}
    assert environment.left_out("test") == {"unverifiable": ("retail/test/5",), "faulty": ()}
    everything = TauBenchEnvironment(path=str(tmp_path), faulty=True, unverifiable=True)
    assert len(list(everything.tasks("train"))) == len(list(everything.tasks("test"))) == 6


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no folder 'tau_bench'.*git clone"):
        TauBenchEnvironment(path=str(tmp_path))
    package = write_tau_bench(tmp_path)
    with pytest.raises(UserError, match=r"no domain 'retal'. Did you mean 'retail'"):
        TauBenchEnvironment(domain="retal", path=str(package))
    with pytest.raises(UserError, match=r"airline has no train split: train on domain `retail`"):
        next(TauBenchEnvironment(domain="airline", path=str(package)).tasks("train"))
    with pytest.raises(UserError, match=r"could not be imported.*envs\.airline"):
        next(TauBenchEnvironment(domain="airline", path=str(package)).tasks("test"))


def test_records_copy_what_is_asked_for_and_know_what_changed() -> None:
    shared = freeze({"a": {"n": [1]}, "b": {"n": [2]}, "c": {"n": [3]}})
    one, other = Records(shared), Records(shared)
    one["a"]["n"].append(4)
    del one["b"]
    one["d"] = {"n": []}
    one["c"]["n"][0] = 3  # looked at, and left as it was
    assert one.changes() == {"a": '{"n": [1, 4]}', "b": None, "d": '{"n": []}'} and other.changes() == {}
    assert json.dumps(dict(one.items())) == '{"a": {"n": [1, 4]}, "c": {"n": [3]}, "d": {"n": []}}'
    assert "b" not in one and len(one) == 3 and "b" in other
    one["c"]["n"][0] = 3.0  # another text, as in the benchmark's hash
    assert "c" in one.changes()
    for change in (lambda r: r.update(n=1), lambda r: r.__setitem__("n", 1), lambda r: r["n"].append(1)):
        with pytest.raises(TypeError, match=r"look it up by its key"):
            change(other.values()[1])


@pytest.mark.parametrize(
    ("text", "value"), [("1 + 2", "3.0"), ("-(2.5 * 4) / 3", "-3.33"), ("0.1 + 0.2", "0.3"), (" 7 ", "7.0")]
)
def test_sums_are_computed(text: str, value: str) -> None:
    assert compute(text) == value


@pytest.mark.parametrize(
    "text", ["", "2 ** 3", "1 / 0", "(" * 500, "x", "1 +", "1e999 * 0 + abs(1)", "'a' * 9", "1" * 1001]
)
def test_other_texts_are_no_sums(text: str) -> None:
    with pytest.raises(ValueError):
        compute(text)
