"""The math environment gives graded tasks, keeps its splits apart and verifies answers."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from itertools import islice
from pathlib import Path

import pytest

from agentgym.env import EpisodeContext, Reply
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.types import Task
from agentgym_envs.math.environment import MathEnvironment
from agentgym_envs.math.procedural import _MAKERS, LEVELS, Draws, make_problem, problems, working
from agentgym_envs.math.rows import in_order, read_rows

DATA = Path(__file__).parent.parent / "data" / "gsm8k_shaped.jsonl"
ANSWERS = {"25", "1350", "36", "-7", "5/8", "75", "360", "100/3", "106"}


async def play(environment: MathEnvironment, task: Task, *answers: str) -> tuple[EpisodeContext, Reply]:
    context = EpisodeContext(task=task, messages=list(task.prompt), max_turns=environment.max_turns)
    context.state = await environment.start(context)
    for answer in answers:
        context.messages.append({"role": "assistant", "content": answer})
        context.turn += 1
        reply = await environment.reply(context)
        context.messages.extend(reply.messages)
    await environment.finish(context)
    return context, reply


def first_task(**options: object) -> Task:
    return next(MathEnvironment(**options).tasks("train"))  # type: ignore[arg-type]


def test_the_plugin_gives_the_environment() -> None:
    registry = PluginRegistry.discover()
    assert registry.environment("math") is MathEnvironment
    assert registry.provider("environments", "math").distribution == "agentgym"


def test_expressions_have_the_answer_that_python_computes() -> None:
    checked = 0
    for problem in islice(problems("train", 3, (1, 2, 3, 4)), 500):
        expression = re.fullmatch(r"What is (.+)\?(?: Give a fraction\.)?", problem.question)
        assert expression is not None
        exact = re.sub(r"[0-9][0-9,.]*", lambda m: f"Fraction('{m[0].replace(',', '')}')", expression[1])
        exact = exact.replace("% of", " / 100 *")
        assert eval(exact, {"Fraction": Fraction}) == problem.answer, problem.question
        checked += 1
    assert checked == 500


def test_word_problems_have_the_answer_of_their_numbers() -> None:
    for problem in islice(problems("train", 5, (5,)), 200):
        n = [int(word) for word in re.findall(r"[0-9]+", problem.question)]
        if "buys" in problem.question:
            expected = Fraction(n[3] - n[0] * n[1] * n[2])
        elif "finds" in problem.question:
            expected = Fraction(n[0] + n[1] - n[2], n[3])
        else:
            expected = Fraction(n[0] * n[1]) + Fraction(n[2] * n[3], 60)
        assert problem.answer == expected, problem.question


def test_every_question_can_be_worked_out_from_its_text() -> None:
    for problem in islice(problems("train", 11, LEVELS), 500):
        exact = re.sub(r"[0-9.]+", lambda m: f"Fraction('{m[0]}')", working(problem.question))
        assert eval(exact, {"Fraction": Fraction}) == problem.answer, problem.question


def test_another_seed_gives_other_tasks() -> None:
    one, other = ([t.prompt for t in islice(MathEnvironment().tasks("train", seed), 20)] for seed in (1, 2))
    assert one != other


SWAPS = (  # what a child would call the same sum, by rewriting its text
    (r"What is ([\d,.]+) ([+*]) ([\d,.]+)\?", r"What is \3 \2 \1?"),
    (r"What is \((\d+) \+ (\d+)\)", r"What is (\2 + \1)"),
    (r"What is (\d+) - (\d+) \* (\d+)", r"What is \1 - \3 * \2"),
    (r"What is (\d+) - (.*) \+ (\d+)\?", r"What is \3 - \2 + \1?"),
    (r"What is (\d+/\d+) \+ (\d+/\d+)\?", r"What is \2 + \1?"),
    (r"What is (\d+)% of (\d+)\?", r"What is \2% of \1?"),
    (r"buys (\d+) packs of (\d+)", r"buys \2 packs of \1"),
    (r"has (\d+) (\w+) and finds (\d+)", r"has \3 \2 and finds \1"),
)


def the_same(question: str) -> set[str]:
    """The question in all its swapped forms; of a word problem, whoever it is about and whatever is counted."""
    forms = {re.sub(r"\b(apples|pens|stamps|marbles|tickets|shells)\b", "things", question)}
    forms = {re.sub(r"\b(Ada|Bo|Chidi|Dana|Emil|Fatou|Goro|Hana)\b", "Someone", form) for form in forms}
    decimals = r"What is (\d\.\d)0 \* (\d)\.(\d)\?"  # 0.50 * 1.2 is 1.20 * 0.5
    forms |= {re.sub(decimals, r"What is \2.\g<3>0 * \1?", form) for form in forms}
    for pattern, swapped in SWAPS:
        forms |= {re.sub(pattern, swapped, form) for form in forms}
    return forms


def test_no_test_question_is_a_train_question_or_another_test_question_with_swapped_operands() -> None:
    environment = MathEnvironment()
    train = {t.prompt[0]["content"].split("\n")[0] for t in islice(environment.tasks("train", 1), 12_000)}
    known = {form for question in train for form in the_same(question)}
    test = [the_same(t.prompt[0]["content"].split("\n")[0]) for t in environment.tasks("test", 0)]
    assert len(test) == 512
    assert [forms for forms in test if forms & known] == []
    assert [forms for at, forms in enumerate(test) if any(forms & earlier for earlier in test[:at])] == []


def test_both_splits_have_every_level_and_every_kind() -> None:
    for split in ("train", "test"):
        made = list(islice(problems(split, 3, LEVELS), 400))  # type: ignore[arg-type]
        assert {problem.level for problem in made} == set(LEVELS)
        assert {problem.kind for problem in made} == {maker.__name__ for makers in _MAKERS.values() for maker in makers}


def test_a_level_without_enough_questions_ends_early_instead_of_hanging() -> None:
    pairs = [(a, b) for a in range(100) for b in range(100)]
    possible = {("+", a + b, min(a, b)) for a, b in pairs} | {("-", a, b) for a, b in pairs}
    found = sum(1 for _ in MathEnvironment(levels=(1,), test_tasks=10**9).tasks("test"))
    assert 0.9 * len(possible) < 5 * found < 1.1 * len(possible)


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_is_made_and_says_so(level: int) -> None:
    tasks = list(islice(MathEnvironment(levels=(level,)).tasks("train"), 30))
    assert {task.difficulty for task in tasks} == {level}
    assert len({make_problem(level, Draws("x", i)).question for i in range(50)}) > 25


async def test_a_right_answer_succeeds_in_one_turn() -> None:
    task = first_task()
    context, reply = await play(MathEnvironment(), task, f"Let me see.\n#### {task.answer}")
    assert reply.done and not reply.messages
    assert context.info == {"success": True, "answer": task.answer, "format_ok": True, "tries": 1}


async def test_an_unmarked_right_answer_succeeds_without_the_format() -> None:
    task = first_task(levels=(1,))
    context, _ = await play(MathEnvironment(), task, f"I think it is {task.answer}")
    assert context.info["success"] is True and context.info["format_ok"] is False


@pytest.mark.parametrize("said", ["#### 123456789", "I don't know", "", "#### \\boxed{", "\x00" * 10])
async def test_a_wrong_or_missing_answer_fails_without_an_error(said: str) -> None:
    context, reply = await play(MathEnvironment(), first_task(), said)
    assert reply.done and not reply.invalid
    assert context.info["success"] is False


async def test_a_second_try_comes_only_when_asked_for_and_needed() -> None:
    task, patient = first_task(), MathEnvironment(tries=2)
    context, reply = await play(patient, task, "#### 123456789")
    assert not reply.done and "123456789 is not right" in reply.messages[0]["content"]
    assert str(task.answer) not in reply.messages[0]["content"].replace("123456789", "")
    context, reply = await play(patient, task, "#### 123456789", f"#### {task.answer}")
    assert reply.done and context.info["success"] is True and context.info["tries"] == 2
    context, reply = await play(patient, task, "no", "#### 123456789")
    assert reply.done and context.info["success"] is False


async def test_an_episode_that_is_cut_off_before_an_answer_has_failed() -> None:
    task = first_task()
    context = EpisodeContext(task=task, messages=list(task.prompt))
    await MathEnvironment().start(context)
    assert context.info["success"] is False and context.info["answer"] is None


def test_jsonl_rows_become_tasks_with_exact_answers() -> None:
    environment = MathEnvironment(source="jsonl", path=str(DATA), test_share=0.3)
    test = list(environment.tasks("test"))
    train = list(islice(environment.tasks("train"), 10 - len(test)))
    assert 1 <= len(test) <= 6
    assert {task.answer for task in (*train, *test)} == ANSWERS
    assert len({task.task_id for task in (*train, *test)}) == 10
    assert {task.split for task in test} == {"test"}


def test_training_rows_come_again_in_another_order() -> None:
    tasks = MathEnvironment(source="jsonl", path=str(DATA), test_path=str(DATA)).tasks("train")
    with pytest.raises(UserError, match="no row for the train split"):  # every row is held out
        next(tasks)
    rows = read_rows("jsonl", str(DATA), "", "train", 0)
    order = [row.key for row in islice(in_order(rows, "train", 1), 20)]
    assert sorted(order[:10]) == sorted(order[10:]) == sorted(row.key for row in rows)
    assert order[:10] != order[10:]
    assert order == [row.key for row in islice(in_order(rows, "train", 1), 20)]


def test_a_test_file_is_taken_whole_and_left_out_of_training(tmp_path: Path) -> None:
    lines = DATA.read_text().splitlines()
    (tmp_path / "test.jsonl").write_text("\n".join(lines[:3]))
    environment = MathEnvironment(source="jsonl", path=str(DATA), test_path=str(tmp_path / "test.jsonl"))
    assert len(list(environment.tasks("test"))) == 3
    assert len({task.task_id for task in islice(environment.tasks("train"), 30)}) == 7


@pytest.mark.slow
def test_parquet_rows_are_the_rows_of_the_same_jsonl(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [json.loads(line) for line in DATA.read_text().splitlines()]
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "rows.parquet")
    assert read_rows("parquet", str(tmp_path / "rows.parquet"), "", "train", 0) == read_rows(
        "jsonl", str(DATA), "", "train", 0
    )
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(UserError, match=r"parquet file .*broken\.parquet cannot be read"):
        read_rows("parquet", str(tmp_path / "broken.parquet"), "", "train", 0)


@pytest.mark.slow
def test_a_hub_data_set_keeps_its_own_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    lines = DATA.read_text().splitlines()
    folder = tmp_path / "hub"  # the loader takes a folder where it takes a name
    folder.mkdir()
    (folder / "train.jsonl").write_text("\n".join(lines[:8]))
    (folder / "test.jsonl").write_text("\n".join(lines[7:]))
    environment = MathEnvironment(source="hub", path=str(folder))
    assert len(list(environment.tasks("test"))) == 3
    train = {task.task_id for task in islice(environment.tasks("train"), 30)}
    assert len(train) == 7  # the row that is in both is held out
    with pytest.raises(UserError, match=r"cannot be (read|reached).*--env\.options\.path FILE"):
        next(MathEnvironment(source="hub", path=str(tmp_path / "none")).tasks("test"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"1 of 1 rows of .*rows\.jsonl can't be used: row 1 is not JSON"),
        ("[1]", r"rows\.jsonl can't be used: row 1 is \[1\]"),
        ('{"answer": "#### 1"}', "row 1 has no question"),
        ('{"question": "a", "answer": "#### 1"}\n{"question": "b", "answer": "#### x"}', "1 of 2 .*row 2 .* '#### x'"),
        ('{"question": "a", "answer": null}', "row 1 has the answer None"),
        ('{"problem": "a", "solution": "It is 5."}', "row 1 has a solution without .*boxed"),
        ("", "holds no row"),
    ],
)
def test_bad_data_is_the_users_mistake_and_named_by_its_row(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "rows.jsonl").write_text(content)
    with pytest.raises(UserError, match=message):
        list(MathEnvironment(source="jsonl", path=str(tmp_path / "rows.jsonl")).tasks("test"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "jsonlines"}, "Did you mean 'jsonl'"),
        ({"source": "jsonl"}, "needs `path`, a file"),
        ({"source": "hub"}, "needs `path`, a data set's name"),
        ({"levels": (0, 1)}, "levels is"),
        ({"levels": ()}, "levels is"),
        ({"tries": 3}, "tries 3"),
        ({"test_share": 1.5}, r"test_share 1\.5"),
        ({"answer_format": "hash"}, "Did you mean 'hashes'"),
        ({"units": "yes"}, "no units 'yes'"),
        ({"tools": "calculater"}, "Did you mean 'calculator'"),
        ({"tolerance": -1}, "tolerance -1"),
    ],
)
def test_options_that_are_not_allowed_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        MathEnvironment(**options)  # type: ignore[arg-type]


def test_a_missing_file_is_named() -> None:
    with pytest.raises(UserError, match=r"there is no file /nowhere/rows\.jsonl"):
        next(MathEnvironment(source="jsonl", path="/nowhere/rows.jsonl").tasks("train"))
