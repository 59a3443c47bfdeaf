"""MATH's rows are read as they are, asked for in a box, and a bad row is named and left out."""

from __future__ import annotations

import json
import logging
from itertools import islice
from pathlib import Path

import pytest

from agentgym.errors import UserError
from agentgym.testing import play
from agentgym.types import Task
from agentgym_envs.math.environment import MathEnvironment
from agentgym_envs.math.rows import read_rows

DATA = Path(__file__).parent.parent / "data" / "math_shaped.jsonl"
GSM8K = DATA.with_name("gsm8k_shaped.jsonl")


def tasks_of(environment: MathEnvironment) -> dict[str, Task]:
    return {task.prompt[0]["content"].split(" ")[0]: task for task in environment.tasks("test")}


async def success(environment: MathEnvironment, task: Task, said: str) -> object:
    return (await play(environment, task, said)).info["success"]


async def test_rows_with_a_boxed_solution_are_asked_for_in_a_box_and_judged_as_expressions() -> None:
    environment = MathEnvironment(source="jsonl", path=str(DATA), test_path=str(DATA))
    tasks = tasks_of(environment)
    assert len(tasks) == 5 and all("\\boxed{}" in task.prompt[0]["content"] for task in tasks.values())
    assert {name: task.difficulty for name, task in tasks.items()}["Which"] == 3
    assert await success(environment, tasks["Expand"], "So \\boxed{1 + 2x + x^2}.")
    assert await success(environment, tasks["What"], "#### 9/7")
    assert not await success(environment, tasks["Expand"], "So \\boxed{(x-1)^2}.")
    assert not await success(environment, tasks["Evaluate"], "\\boxed{2^{10}}")
    assert not await success(environment, tasks["Evaluate"], "1024 without a mark")


async def test_the_solution_of_every_row_is_right_in_both_formats() -> None:
    for path in (DATA, GSM8K):
        for form in ("auto", "boxed", "hashes"):
            environment = MathEnvironment(source="jsonl", path=str(path), test_path=str(path), answer_format=form)  # type: ignore[arg-type]
            for task in environment.tasks("test"):
                (said,) = environment.solve(task)
                assert await success(environment, task, said["content"]), (task, said)
                assert "<<" not in said["content"]


async def test_a_format_that_is_asked_for_is_the_only_one_that_counts() -> None:
    for form, right, wrong in (("boxed", "\\boxed{%s}", "#### %s"), ("hashes", "#### %s", "\\boxed{%s}")):
        environment = MathEnvironment(answer_format=form)  # type: ignore[arg-type]
        task = next(environment.tasks("train"))
        assert right.split("%")[0].strip() in task.prompt[0]["content"]
        assert await success(environment, task, right % task.answer)
        assert not await success(environment, task, wrong % task.answer)
        assert not await success(environment, task, str(task.answer))


def test_levels_and_types_choose_rows() -> None:
    def chosen(**options: object) -> list[str]:
        environment = MathEnvironment(source="jsonl", path=str(DATA), test_path=str(DATA), **options)  # type: ignore[arg-type]
        return sorted(tasks_of(environment))

    assert chosen(levels=(1,)) == ["Evaluate", "On", "What"]  # a row without a level is always there
    assert chosen(types=("Counting",)) == ["On"]
    with pytest.raises(UserError, match="levels and types"):
        chosen(types=("Geometry",))


def test_a_json_list_and_a_folder_of_files_hold_the_same_rows(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in DATA.read_text().splitlines()]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    for number, row in enumerate(rows):
        (folder := tmp_path / "MATH" / row["type"]).mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.json").write_text(json.dumps(row))
    whole = read_rows("jsonl", str(DATA), "", "test", 0)
    assert read_rows("json", str(tmp_path / "rows.json"), "", "test", 0) == whole
    in_folder = read_rows("json", str(tmp_path / "MATH"), "", "test", 0)
    assert sorted(in_folder, key=lambda row: row.key) == sorted(whole, key=lambda row: row.key)


def test_few_bad_rows_are_named_and_left_out_and_many_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = [json.dumps({"question": f"{n} + 1?", "answer": f"#### {n + 1}"}) for n in range(98)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([*good[:50], '{"question": "a"}', "{", *good[50:]]))
    environment = MathEnvironment(source="jsonl", path=str(path), max_bad_share=0.02)
    with caplog.at_level(logging.WARNING):
        found = len(list(environment.tasks("test"))) + len({t.task_id for t in islice(environment.tasks("train"), 98)})
    assert found >= 98
    (record,) = caplog.records
    assert "left out 2 of 100 rows" in record.message and "row 51 has the answer None" in record.message
    assert "row 52 is not JSON" in record.message
    with pytest.raises(UserError, match=r"2 of 100 rows of .*rows\.jsonl can't be used: row 51 .* max_bad_share 0.01"):
        next(MathEnvironment(source="jsonl", path=str(path)).tasks("train"))


def test_a_line_ends_at_a_line_feed_only(tmp_path: Path) -> None:
    question = "one\N{LINE SEPARATOR}two\x85three"
    (tmp_path / "rows.jsonl").write_text(
        json.dumps({"question": question, "answer": "3"}, ensure_ascii=False), encoding="utf-8"
    )
    (row,) = read_rows("jsonl", str(tmp_path / "rows.jsonl"), "", "train", 0)
    assert row.question == question


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        ("5 km", ["5 km", "5000 m", "5 kilometers", "5\\text{ km}"], ["5", "5 m", "5 apples", "5 kg"]),
        ("$3.50", ["$3.50", "3.5 dollars", "350 cents", "\\$3.50"], ["3.5 euros", "3.5"]),
        ("36 km/h", ["10 m/s", "36 km per hour"], ["36 m/s", "36 km"]),
        ("4 m²", ["4 m²", "4 m^2", "4\\text{ m}^2", "40 000 cm^2"], ["4 m", "400 cm^2"]),
        ("7 apples", ["7 apples", "7 red apples", "7 apple"], ["7 pears", "7"]),
        ("7", ["7", "7 apples"], ["8"]),
        ("A square. #### 25 cm^2\nIt has 4 sides.", ["25 cm^2"], ["25"]),
        ("A square. #### 25 cm^2", ["25 cm^2", "0.0025 m^2"], ["25", "25 cm", "26 cm^2"]),
    ],
)
async def test_units_count_when_they_are_checked(
    tmp_path: Path, answer: str, right: list[str], wrong: list[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "How much?", "answer": answer}))
    strict = MathEnvironment(source="jsonl", path=str(path), test_path=str(path), units="check")
    (task,) = strict.tasks("test")
    for said in right:
        assert await success(strict, task, f"#### {said}"), said
    for said in wrong:
        assert not await success(strict, task, f"#### {said}"), said
    easy = MathEnvironment(source="jsonl", path=str(path), test_path=str(path))
    (task,) = easy.tasks("test")
    assert await success(easy, task, f"#### {task.answer} parsecs")


async def test_a_tolerance_is_an_option() -> None:
    environment = MathEnvironment(tolerance=0.01, levels=(2,))
    task = next(task for task in environment.tasks("train") if int(str(task.answer)) > 1000)
    answer = int(str(task.answer))
    assert await success(environment, task, f"#### {answer * 1.009}")
    assert not await success(environment, task, f"#### {answer * 1.011}")
