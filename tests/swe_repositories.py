"""Three small git repositories with a fault, their images and their rows, for the tests of the environment swe."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harbor_tasks import PYTEST

IDENTITY = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
ENV = {**os.environ, **IDENTITY, "GIT_CONFIG_GLOBAL": "/dev/null"}
SUMS = "def add(a, b):\n    return a - b\n\n\ndef text(a):\n    return str(a)\n"
TEST_SUMS = """\
import pytest
from sums import add, text

@pytest.mark.parametrize("a", ["a b", "a c", "d"])
def test_text(a):
    assert text(a) == a
"""
NEW_TEST = "\ndef test_add():\n    assert add(2, 3) == 5\n"
SHAPES = "def area(side):\n    return side * 4\n"
TEST_SHAPES = """\
import unittest
from shapes import area

class Areas(unittest.TestCase):
    def test_zero(self):
        self.assertEqual(area(0), 0)

    def test_one(self):
        "A square of two"
        self.assertEqual(area({side}), {want})
"""
TEST_WORDS = """\
from words import shout

def test_shout():
    assert shout("a") == "A"

def test_empty():
    assert shout("") == ""
"""


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=ENV).stdout.rstrip("\n")


def commit(folder: Path, files: Mapping[str, str], message: str) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def patches(folder: Path, base: str, end: str) -> tuple[str, str]:
    """What changed outside and inside the tests."""
    gold = git(folder, "diff", base, end, "--", ".", ":(exclude)tests")
    return f"{gold}\n", f"{git(folder, 'diff', base, end, '--', 'tests')}\n"


def repositories(folder: Path) -> dict[str, dict[str, Any]]:
    """Rows by repository, without images; each repository is in a folder of its name, at its last commit."""
    rows: dict[str, dict[str, Any]] = {}
    for name in ("sums", "shapes", "words"):
        (folder / name).mkdir()
        git(folder / name, "init", "-q", "-b", "trunk")
    sums = folder / "sums"
    commit(sums, {"README": "Sums.\n"}, "Begin")
    base = commit(sums, {"sums.py": SUMS, "tests/test_sums.py": TEST_SUMS, ".gitignore": "*.log\n"}, "Add sums")
    fixed = {"sums.py": SUMS.replace("a - b", "a + b"), "tests/test_sums.py": TEST_SUMS + NEW_TEST}
    future = commit(sums, fixed, "Fix add")
    git(sums, "tag", "v2")
    git(sums, "branch", "other")
    gold, tests = patches(sums, base, future)
    rows["sums"] = {
        "instance_id": "us__sums-1",
        "repo": "us/sums",
        "base_commit": base,
        "patch": gold,
        "test_patch": tests,
        "problem_statement": "add(2, 3) is -1.",
        "FAIL_TO_PASS": '["tests/test_sums.py::test_add"]',
        # as SWE-bench has them: cut at the first space
        "PASS_TO_PASS": '["tests/test_sums.py::test_text[a", "tests/test_sums.py::test_text[d]"]',
        "test_cmd": "python3 -m pytest -rA -p no:cacheprovider",
        "future": future,
    }
    shapes = folder / "shapes"
    before = {"shapes.py": SHAPES, "tests/__init__.py": "", "tests/test_shapes.py": TEST_SHAPES.format(side=4, want=16)}
    base = commit(shapes, before, "Add shapes")
    after = {"shapes.py": SHAPES.replace("4", "side"), "tests/test_shapes.py": TEST_SHAPES.format(side=2, want=4)}
    gold, tests = patches(shapes, base, commit(shapes, after, "Fix area"))
    rows["shapes"] = {
        "instance_id": "us__shapes-1",
        "repo": "us/shapes",
        "base_commit": base,
        "patch": gold,
        "test_patch": tests,
        "problem_statement": "The area of a square with side 2 is 4, by chance; see the new test.",
        "FAIL_TO_PASS": ["A square of two"],
        "PASS_TO_PASS": ["test_zero (tests.test_shapes.Areas.test_zero)"],
        "install_config": json.dumps({"test_cmd": "python3 -m unittest -v", "log_parser": "parse_log_django"}),
    }
    after["tests/test_shapes.py"] = TEST_SHAPES.format(side=3, want=9)
    tests = patches(shapes, base, commit(shapes, after, "Test more"))[1]
    rows["shapes"]["test_patch"] = tests
    words = folder / "words"
    right = "def shout(word):\n    return word.upper()\n"
    commit(words, {"words.py": right, "tests/test_words.py": TEST_WORDS}, "Add words")
    (words / "words.py").write_text(right.replace("upper", "lower"))
    bug = git(words, "diff") + "\n"
    git(words, "checkout", "-q", ".")
    smith = {
        "instance_id": "us__words.0123.lm_1",
        "repo": "swesmith/us__words.0123",
        "patch": bug,
        "problem_statement": "shout whispers.",
        "FAIL_TO_PASS": ["tests/test_words.py::test_shout"],
        "PASS_TO_PASS": ["tests/test_words.py::test_empty"],
        "test_cmd": "python3 -m pytest -v -p no:cacheprovider",
    }
    rows["words"] = {"instance_dict": json.dumps(smith), "instance_id": smith["instance_id"]}
    return rows


def images(base: str, folder: Path, made: list[str]) -> dict[str, str]:
    """An image of each repository in /testbed, with git and pytest; shapes is in /shapes. `made` gets them, too.

    base: our sandbox image. Git is this machine's, with its libraries and their loader.
    """
    at = folder / "base"
    (at / "packages").mkdir(parents=True)
    purelib = Path(sysconfig.get_path("purelib"))
    for package in (*(purelib / one for one in PYTEST), *purelib.glob("pluggy-*.dist-info")):
        subprocess.run(["cp", "-r", package, at / "packages"], check=True)
    program = Path(str(shutil.which("git"))).resolve()
    (at / "git").mkdir()
    shutil.copy(program, at / "git/git")
    for line in subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout.splitlines():
        library = next((word for word in line.split() if word.startswith("/")), "")
        if library:
            shutil.copy(library, at / "git" / ("ld.so" if "ld-linux" in library else Path(library).name))
    (at / "git.sh").write_text('#!/bin/sh\nexec /opt/git/ld.so --library-path /opt/git /opt/git/git "$@"\n')
    (at / "git.sh").chmod(0o755)
    (at / "Dockerfile").write_text(
        f"FROM {base}\nCOPY packages /usr/lib/python3/dist-packages\n"
        "COPY git /opt/git\nCOPY git.sh /usr/local/bin/git\n"
    )
    found = {"base": _build(at)}
    made.append(found["base"])
    for name in ("sums", "shapes", "words"):
        place = "/shapes" if name == "shapes" else "/testbed"
        (folder / f"{name}.Dockerfile").write_text(f"FROM {found['base']}\nCOPY {name} {place}\n")
        found[name] = _build(folder, "-f", str(folder / f"{name}.Dockerfile"))
        made.append(found[name])
    return found


def _build(folder: Path, *options: str) -> str:
    mine = f"agentgym.test={folder}"  # else another run of the tests would get the same image, and remove it
    command = ["docker", "build", "-q", "--network", "none", "--label", mine, *options, str(folder)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
