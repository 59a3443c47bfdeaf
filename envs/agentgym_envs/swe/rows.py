"""Reads rows of SWE-bench's shape, and of data sets that name its columns otherwise: JSONL, JSON, Parquet, the hub."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

from agentgym import data_sets
from agentgym.errors import UserError
from agentgym_envs.swe.logs import END, START, parser_of

Row = Mapping[str, object]
VERSION: Final = 1  # of how rows are read and verdicts are found
_IMAGES: Final = ("image", "image_name", "docker_image", "image_url")
_COMMANDS: Final = {  # of rows that do not say how their tests are run, by repository
    "django/django": ("./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1", "unittest"),
    "sphinx-doc/sphinx": ("tox --current-env -epy39 -v --", "pytest"),
}
_NO_COMMAND: Final = ("sympy/sympy",)  # its own runner, whose log has another form
_OF_BENCH: Final = (
    "astropy/astropy django/django matplotlib/matplotlib mwaskom/seaborn pallets/flask psf/requests pydata/xarray "
    "pylint-dev/pylint pytest-dev/pytest scikit-learn/scikit-learn sphinx-doc/sphinx sympy/sympy"
)
_OF_GYM: Final = (
    "project-monai/monai bokeh/bokeh conan-io/conan dask/dask facebookresearch/hydra getmoto/moto iterative/dvc "
    "modin-project/modin pandas-dev/pandas pydantic/pydantic python/mypy"
)
_REFUSED: Final = {  # a column that only rows of this kind have, and what the kind is
    "expected_action": "one turn is compared with an action, without a container",
    "expected_output_json": "R2E-Gym, whose tests are in the image",
    "run_script.sh": "SWE-bench Pro, with a parser of its own for each row",
    "fixed_tests": "Multi-SWE, with a harness of its own",
}
_GIT: Final = re.compile(r"^diff --git \"?a/(.+?)\"? \"?b/(.+?)\"?$", re.MULTILINE)
_PLAIN: Final = re.compile(r"^--- (?:a/(\S+)|/dev/null).*\n\+\+\+ (?:b/(\S+)|/dev/null)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A row. work: the repository's folder in the image. base: empty for the image's commit.

    patch: the solution; empty where the row has none. bug: a patch that makes the task, of rows whose image has the
    repository without a fault. script: runs the tests, with bash. tests_in_script: it applies test_patch itself.
    """

    name: str
    repo: str
    problem: str
    base: str
    image: str
    work: str
    patch: str
    test_patch: str
    must_pass: tuple[str, ...]
    must_stay: tuple[str, ...]
    script: str
    parser: str
    bug: str = ""
    tests_in_script: bool = False

    @property
    def pin(self) -> str:
        """A hash of all that a verdict depends on."""
        return f"{hashlib.sha256(repr(astuple(self)).encode()).hexdigest()[:32]}-{VERSION}"

    @property
    def has_oracle(self) -> bool:
        return bool(self.patch or self.bug)


def read_rows(path: str, *, split: str) -> list[Row]:
    """Of a file, or of a data set's split on the hub. Raises UserError for what can't be read."""
    file = Path(path)
    if not file.is_file():
        if file.suffix in (".jsonl", ".json", ".parquet") or path.count("/") != 1:
            found = "is a folder" if file.is_dir() else "does not exist"
            raise UserError(f"swe: {path!r} {found}; give a file of rows, as .jsonl, .json or .parquet")
        return list(data_sets.load(path, split=split, who="swe"))
    if file.suffix == ".parquet":
        data_sets.package("swe").disable_progress_bars()
        return list(data_sets.load("parquet", files=[path], split="train", who="swe"))
    try:
        text = file.read_text(encoding="utf-8")
        rows = json.loads(text) if file.suffix == ".json" else list(_by_line(text))
    except (OSError, ValueError) as error:
        raise UserError(f"swe: {path} can't be read as rows: {error}") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"swe: {path} is not a list of rows; a row is an object with a value for each column")
    return rows


def _by_line(text: str) -> Iterator[object]:
    """Values of JSON lines. Text in them may hold other ends of lines, as U+2028."""
    for number, line in enumerate(text.split("\n"), 1):
        try:
            yield from [json.loads(line)] if line.strip() else ()
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number}, column {error.colno}: {error.msg}") from error


def read_instance(row: Row, *, image: str = "", command: str = "", log_parser: str = "") -> Instance:
    """image, command, log_parser: in place of the row's, where given. Raises UserError with what the row lacks."""
    if isinstance(row.get("instance_dict"), str | Mapping):  # a row inside a row
        row = {**row, **_table(row, "instance_dict")}
    for column, kind in _REFUSED.items():
        if row.get(column) is not None:
            raise UserError(f"column {column} is not supported ({kind}); leave such rows out")
    if row.get("eval_type") not in (None, "", "pass_and_fail"):
        raise UserError(f"eval_type {row['eval_type']!r} is not supported, only pass_and_fail is")
    language = str(row.get("repo_language") or row.get("language") or "python").lower()
    if language != "python":
        raise UserError(f"language {language!r} is not supported: the logs of pytest and unittest are read")
    repo, name = _text(row, "repo", "repo_name"), _text(row, "instance_id")
    problem = _text(row, "problem_statement", "prompt")
    if not name or not problem:
        raise UserError(f"a row has instance_id and problem_statement, as text; this one has {', '.join(sorted(row))}")
    patch, smith = _text(row, "patch", "gold_patch"), repo.startswith("swesmith/")
    must_pass, must_stay = _list(row, "FAIL_TO_PASS", "fail_to_pass"), _list(row, "PASS_TO_PASS", "pass_to_pass")
    if not must_pass:
        raise UserError("FAIL_TO_PASS is empty: nothing would show that it is solved")
    test_patch = _text(row, "test_patch")
    script, parser = _script(row, repo, test_patch, (*must_pass, *must_stay), command, log_parser)
    return Instance(
        name=name,
        repo=repo,
        problem=problem,
        base="" if smith else _text(row, "base_commit", "commit_hash"),
        image=_image(row, repo, name, image),
        work=_work(row, repo),
        patch="" if smith else patch,
        bug=patch if smith else "",
        test_patch=test_patch,
        must_pass=must_pass,
        must_stay=must_stay,
        script=script,
        parser=parser,
        tests_in_script="git apply" in script,
    )


def files_of(patch: str) -> list[str]:
    """Paths that a patch touches, in its order; of a renamed file both."""
    pairs = _GIT.findall(patch) or _PLAIN.findall(patch)
    return list(dict.fromkeys(name for pair in pairs for name in pair if name))


def _script(
    row: Row, repo: str, test_patch: str, tests: Iterable[str], command: str, log_parser: str
) -> tuple[str, str]:
    """The text that runs the tests, and the parser of its log."""
    install = _table(row, "install_config")
    asked = command or _lines(row.get("test_cmd")) or _lines(install.get("test_cmd"))
    named = log_parser or _text(row, "log_parser") or str(install.get("log_parser") or "")
    whole = _text(row, "eval_script")
    if whole and not asked:
        mark = f": '{END}'"
        if START in whole and mark in whole:  # what it ends with is not the tests' exit code
            whole = whole.replace(mark, f"agentgym_code=$?\n{mark}") + "\nexit $agentgym_code\n"
        return whole, parser_of(named or "pytest")
    usual, parser = _COMMANDS.get(repo, ("pytest -rA -p no:cacheprovider", "pytest"))
    if repo in _NO_COMMAND and not asked:
        raise UserError(f"{repo} runs its tests by a program whose log is not read; give test_cmd and log_parser")
    asked, parser = asked or usual, parser_of(named) if named else parser
    if ".py " in f"{asked} " and "runtests" not in asked:
        return asked, parser
    files = [one for one in files_of(test_patch) if one.endswith(".py") and not one.endswith("conftest.py")]
    files = files or list(dict.fromkeys(one.partition("::")[0] for one in tests if ".py::" in one))
    if "runtests.py" in asked:
        files = [one.removeprefix("tests/").removesuffix(".py").replace("/", ".") for one in files]
    if parser == "unittest" and "runtests.py" not in asked:
        return asked, parser
    return " ".join([asked, *map(shlex.quote, files)]), parser


def _image(row: Row, repo: str, name: str, given: str) -> str:
    """given: with {instance_id} in place of the row's id."""
    if given:
        return given.replace("{instance_id}", name.lower())
    if found := _text(row, *_IMAGES):
        return found
    if tag := _text(row, "dockerhub_tag"):
        return f"jefzda/sweap-images:{tag}"
    if repo in _OF_BENCH.split():
        return f"swebench/sweb.eval.x86_64.{name.lower().replace('__', '_1776_')}:latest"
    if repo.lower() in _OF_GYM.split():
        return f"xingyaoww/sweb.eval.x86_64.{name.lower().replace('__', '_s_')}:latest"
    raise UserError(
        f"none of the columns {', '.join(_IMAGES)} names an image; give image, as my/images:{{instance_id}}"
    )


def _work(row: Row, repo: str) -> str:
    if found := _text(row, "workdir"):
        return found
    if _text(row, "dockerhub_tag"):
        return "/app"
    return f"/{repo.rpartition('/')[2]}" if _text(row, "image_name") and row.get("install_config") else "/testbed"


def _text(row: Row, *names: str) -> str:
    """Of the first column that has one."""
    return next((value for name in names if isinstance(value := row.get(name), str) and value), "")


def _lines(value: object) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value or "")


def _table(row: Row, name: str) -> dict[str, object]:
    value = row.get(name) or {}
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise UserError(f"{name} is not valid JSON: {error}") from error
    if not isinstance(found, Mapping):
        raise UserError(f"{name} is {found!r:.80}; it has to be an object")
    return dict(found)


def _list(row: Row, *names: str) -> tuple[str, ...]:
    """A list, or its text in JSON."""
    value = next((row[name] for name in names if row.get(name) is not None), [])
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else []
        except ValueError as error:
            raise UserError(f"{names[0]} is neither a list nor one in JSON: {error}") from error
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise UserError(f"{names[0]} is {value!r:.80}; it has to be a list of test ids")
    return tuple(value)
