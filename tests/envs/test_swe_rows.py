"""Rows of SWE-bench's shape as they are read, logs as they are parsed, and what counts as resolved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentgym.errors import UserError
from agentgym_envs.swe.environment import Swe
from agentgym_envs.swe.judging import undone
from agentgym_envs.swe.logs import END, START, graded, section, statuses
from agentgym_envs.swe.rows import files_of, read_instance

PATCH = "diff --git a/src/a b.py b/src/a b.py\n--- a/src/a b.py\n+++ b/src/a b.py\n@@ -1 +1 @@\n-1\n+2\n"
TESTS = (
    "diff --git a/tests/x/test_a.py b/tests/x/test_a.py\nnew file mode 100644\n--- /dev/null\n+++ b/tests/x/test_a.py\n"
)
ROW: dict[str, Any] = {
    "instance_id": "django__django-1",
    "repo": "django/django",
    "base_commit": "abc",
    "problem_statement": "It fails.",
    "patch": PATCH,
    "test_patch": TESTS,
    "FAIL_TO_PASS": '["test_a (x.test_a.A)"]',
    "PASS_TO_PASS": "[]",
}
PYTEST = """\
tests/test_a.py::test_long[a b] \x1b[32mPASSED\x1b[0m                 [ 10%]
tests/test_a.py::test_skip SKIPPED (no network)          [ 20%]
PASSED tests/test_a.py::test_cut[one two]
PASSED tests/test_a.py::test_cut[one three]
FAILED tests/test_a.py::test_bad - assert 1 == 2
PASSED tests/test_a.py::test_torn
ERROR tests/test_a.py::test_torn - teardown
XFAIL tests/test_a.py::test_later - reason
PASSED tests/test_a.py::test_path[/a/b/c.txt]
= 1 failed, 5 passed in 0.1s =
"""
UNITTEST = """\
test_good (x.A) ... ok
test_doc (x.A)
What it does ... ok
test_loud (x.A) ... printed
more
ok
test_skip (x.A) ... skipped 'no'
test_bad (x.A) ... FAIL
test_known (x.A) ... expected failure
test_odd (x.A) ... unexpected success
======
ERROR: test_broken (x.A)
Ran 7 tests in 0.1s
"""


def resolved(log: str, *must_pass: str, stay: tuple[str, ...] = (), code: int = 1, parser: str = "pytest") -> bool:
    return graded(log, parser, must_pass=must_pass, must_stay=stay, exit_code=code).resolved


def test_each_test_has_the_worst_status_that_the_log_gives_it() -> None:
    at = "tests/test_a.py::test_"
    assert statuses(PYTEST, "pytest") == {
        f"{at}long[a b]": "PASSED",
        f"{at}skip": "SKIPPED",
        f"{at}cut[one two]": "PASSED",
        f"{at}cut[one three]": "PASSED",
        f"{at}bad": "FAILED",
        f"{at}torn": "ERROR",
        f"{at}later": "XFAIL",
        f"{at}path[/a/b/c.txt]": "PASSED",
    }
    assert statuses(UNITTEST, "unittest") == {
        "test_good (x.A)": "PASSED",
        "What it does": "PASSED",
        "test_loud (x.A)": "PASSED",
        "test_skip (x.A)": "SKIPPED",
        "test_bad (x.A)": "FAILED",
        "test_known (x.A)": "XFAIL",
        "test_odd (x.A)": "FAILED",
        "test_broken (x.A)": "ERROR",
    }


def test_rows_are_resolved_by_the_rules_of_swebench() -> None:
    at = "tests/test_a.py::test_"
    assert resolved(PYTEST, f"{at}later", f"{at}long[a b]", stay=(f"{at}skip", f"{at}path[/c.txt]"))
    assert not resolved(PYTEST, f"{at}skip") and not resolved(PYTEST, f"{at}missing")  # skipped, absent
    assert not resolved(PYTEST, f"{at}long[a b]", stay=(f"{at}bad",))
    # ids that were cut at a space: all that begin so have to agree
    assert resolved(PYTEST, f"{at}cut[one") and resolved(PYTEST, f"{at}long[a")
    assert not resolved(
        PYTEST.replace("PASSED tests/test_a.py::test_cut[one th", "FAILED tests/test_a.py::test_cut[one th"),
        f"{at}cut[one",
    )
    # the exit code has to have a reason in the log, and something has to have run
    forged = "PASSED tests/test_a.py::test_x\n"
    assert resolved(forged, f"{at}x", code=0) and not resolved(forged, f"{at}x", code=1)
    empty = graded("bash: pytest: not found", "pytest", must_pass=[f"{at}x"], must_stay=[], exit_code=127)
    assert empty.broken and not empty.resolved
    assert not graded("= 3 deselected in 0.1s =", "pytest", must_pass=[f"{at}x"], must_stay=[], exit_code=5).broken
    assert section(f"PASSED a\n+ : '{START}'\nPASSED b\n+ : '{END}'\nPASSED c").count("PASSED") == 1


def test_rows_of_each_dialect_name_their_image_and_command() -> None:
    bench = read_instance(ROW)
    assert bench.image == "swebench/sweb.eval.x86_64.django_1776_django-1:latest" and bench.work == "/testbed"
    assert bench.script.endswith("--parallel 1 x.test_a") and bench.parser == "unittest"
    assert bench.must_pass == ("test_a (x.test_a.A)",) and files_of(PATCH) == ["src/a b.py"]
    gym = read_instance({**ROW, "repo": "getmoto/moto", "instance_id": "getmoto__moto-7"})
    assert gym.image == "xingyaoww/sweb.eval.x86_64.getmoto_s_moto-7:latest"
    assert gym.script == "pytest -rA -p no:cacheprovider tests/x/test_a.py"
    install = {"test_cmd": "pytest -v", "log_parser": "parse_log_pytest_options"}
    rebench = read_instance({**ROW, "repo": "us/lib", "image_name": "r/lib", "install_config": install})
    assert (rebench.image, rebench.work) == ("r/lib", "/lib") and rebench.script == "pytest -v tests/x/test_a.py"
    nemotron = read_instance({"instance_dict": json.dumps({**ROW, "docker_image": "n/1"})})
    assert nemotron.image == "n/1" and nemotron.base == "abc"
    smith = read_instance({**ROW, "repo": "swesmith/a__b.12", "image_name": "s/1", "test_patch": None})
    assert smith.bug == PATCH and smith.patch == "" and smith.base == "" and smith.has_oracle
    script = f"git apply x\n: '{START}'\npytest\n: '{END}'\ngit checkout x"
    scripted = read_instance({**ROW, "image": "i", "eval_script": script})
    assert scripted.tests_in_script and "pytest\nagentgym_code=$?\n" in scripted.script
    assert (
        read_instance(ROW, image="my/{instance_id}", command="pytest -v", log_parser="pytest").image
        == "my/django__django-1"
    )


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"log_parser": "parse_log_gotest"}, "log_parser 'parse_log_gotest' is not supported, only those of pytest"),
        ({"eval_type": "fail_only"}, "eval_type 'fail_only'"),
        ({"expected_output_json": "{}"}, "R2E-Gym"),
        ({"expected_action": {}}, "without a container"),
        ({"repo_language": "Go"}, "language 'go'"),
        ({"FAIL_TO_PASS": "[]"}, "FAIL_TO_PASS is empty"),
        ({"FAIL_TO_PASS": "test_a"}, "neither a list nor one in JSON"),
        ({"repo": "us/other"}, "none of the columns image, image_name"),
        ({"repo": "sympy/sympy"}, "give test_cmd and log_parser"),
        ({"problem_statement": ""}, "a row has instance_id and problem_statement"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_played_are_refused_by_name(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({**ROW, **row}) + "\n")
    with pytest.raises(UserError, match="1 of 1 rows can't be played, the first is django__django-1: ") as refused:
        Swe(path=str(path))
    assert said in str(refused.value)


def test_a_line_that_is_not_json_is_named_and_text_may_hold_other_ends_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({**ROW, "problem_statement": "one\u2028two"}, ensure_ascii=False) + "\n \n{bad")
    with pytest.raises(UserError, match=r"rows\.jsonl can't be read as rows: line 3, column 2"):
        Swe(path=str(path))
    with pytest.raises(UserError, match="is a folder; give a file of rows"):
        Swe(path=str(tmp_path))


def test_broken_rows_are_left_out_by_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([ROW, {**ROW, "instance_id": "b-2", "log_parser": "go"}]))
    env = Swe(path=str(path), skip_broken=True)
    assert [task.task_id for task in env.tasks("test")] == ["django__django-1"]
    assert env.split_note("test").startswith("1 of 2 rows are left out: b-2: log_parser 'go'")
    with pytest.raises(UserError, match="tasks has 'djang', which no row matches"):
        Swe(path=str(path), tasks=["djang"])


@pytest.mark.hostile  # seconds, to import `datasets`
def test_a_parquet_file_has_the_same_rows(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    row = {**ROW, "FAIL_TO_PASS": ["a", "b"]}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "rows.parquet")
    [task] = Swe(path=str(tmp_path / "rows.parquet")).tasks("test")
    assert task.answer == {"row": read_instance(row).pin}


def test_changes_of_tests_and_of_what_runs_them_do_not_count() -> None:
    one = read_instance({**ROW, "FAIL_TO_PASS": ["checks/all.py::test_a"]})
    names = {"src", "tests", "unittest"}
    lost = ("tests/x/test_a.py", "tests/helper.py", "src/test_b.py", "conftest.py", "tox.ini", "checks/all.py", "tests")
    assert all(undone(path, one, new=False, names=names) for path in lost)
    assert undone("pytest/__init__.py", one, new=True, names=names)
    kept = ("src/a b.py", "src/test/client.py", "src/testing/tools.py", "src/contest.py", "unittest/case.py")
    assert not any(undone(path, one, new=True, names=names) for path in kept)
    allowed = read_instance({**ROW, "patch": PATCH.replace("src/a b.py", "setup.cfg")})
    assert not undone("setup.cfg", allowed, new=False, names=names)
