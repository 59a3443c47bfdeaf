"""The single-turn part of BFCL: a request and functions; the calls of the agent's first message are the answer."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias, cast, get_args

from agentgym.env import Benchmark, Environment, EpisodeContext, Reply
from agentgym.errors import UserError
from agentgym.tools import Tools
from agentgym.types import Json, Message, Split, Task
from agentgym_envs.benchmarks.functions import Functions, FunctionTools, call_message
from agentgym_envs.benchmarks.package import BenchmarkPackage, files_hash, in_order, refuse_training
from agentgym_envs.bfcl.entries import as_schema, chosen, read_rows
from agentgym_envs.bfcl.totals import Totals

SingleCategory: TypeAlias = Literal[
    "simple_python", "simple_java", "simple_javascript", "multiple", "parallel", "parallel_multiple", "irrelevance",
    "live_simple", "live_multiple", "live_parallel", "live_parallel_multiple", "live_irrelevance", "live_relevance",
]  # fmt: skip
SINGLE: Final[tuple[SingleCategory, ...]] = get_args(SingleCategory)
_SYNTAX: Final = {"simple_java": "Java 8 SDK", "simple_javascript": "JavaScript"}  # others: Python 3
_ELEMENTS: Final = ("ArrayList", "Array", "array")  # types whose elements are described in words


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleEntry:
    """One request. described: the functions as the package has them, but with "_" for "." in names, as it shows them
    to models that call functions. right: for each call its name and the allowed values of each argument; None where
    only matters whether there is a call.
    """

    entry_id: str
    category: SingleCategory
    messages: tuple[Message, ...]
    described: tuple[Mapping[str, Any], ...]
    right: Sequence[Mapping[str, Mapping[str, Any]]] | None


class BfclSingleTurnEnvironment(Environment[None]):
    """BFCL v4 single turn: the calls of the first message are compared with the right ones by the package's checker.

    In the irrelevance categories no call is right, in live_relevance any. Nothing is carried out. Recorded in `info`:
    success (bool).
    """

    name: ClassVar[str] = "bfcl_single_turn"
    rewards: ClassVar[Mapping[str, float]] = {"success": 1.0}
    splits = ("test",)
    dynamic_tools: ClassVar[bool] = True
    benchmarks: ClassVar[Mapping[str, Benchmark]] = {
        "bfcl_single_turn": Benchmark(tasks=3641, source="pip install bfcl-eval", licence="Apache-2.0")
    }
    requirements: ClassVar[str] = "pip install --no-deps bfcl-eval"

    def __init__(
        self,
        *,
        categories: Annotated[Sequence[SingleCategory], "as the package names them"] = SINGLE,
        path: Annotated[str | None, "folder of the package bfcl_eval, or one that holds it; null: installed"] = None,
    ) -> None:
        """Raises UserError for an unknown category, and when the package is missing."""
        self._categories = chosen(categories, SINGLE, self.name)
        self._package = BenchmarkPackage.find("bfcl_eval", path, environment=self.name, requirements=self.requirements)

    @functools.cached_property
    def data_hash(self) -> str:
        """SHA-256 of the files of all categories."""
        return files_hash(path for category in self._categories for path in _files(self._package, category))

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        refuse_training(self.name, split)
        for key in in_order(self._entries, seed):
            entry = self._entries[key]
            yield Task(
                task_id=f"bfcl/{key}",
                prompt=entry.messages,
                answer={"entry": key, "data": self.data_hash},
                split="test",
                category=entry.category,
            )

    async def start(self, context: EpisodeContext[None]) -> None:
        context.info.update(success=False, **self._totals.of(self._entry(context.task).category))

    async def toolbox(self, context: EpisodeContext[None]) -> Tools:
        entry = self._entry(context.task)
        return FunctionTools(Functions(_shown(one, entry.category) for one in entry.described), lambda *_: "")

    async def after_calls(self, context: EpisodeContext[None]) -> Reply:
        return self._end(context)

    async def reply(self, context: EpisodeContext[None]) -> Reply:
        return self._end(context)

    def solve(self, task: Task) -> Iterator[Message] | None:
        """None where the package's answer is not a call that its own checker takes, as lists of Java."""
        entry = self._entry(task)
        if entry.right is not None:
            calls = [(name, _first_of_each(values)) for right in entry.right for name, values in right.items()]
            if entry.category in _SYNTAX:
                calls = [(name, {key: _as_text(value) for key, value in values.items()}) for name, values in calls]
        else:
            calls = [(entry.described[0]["name"], {})] if entry.category == "live_relevance" else []
        if not self._is_right(entry, [{name: values} for name, values in calls]):
            return None
        said = call_message(*calls) if calls else cast(Message, {"role": "assistant", "content": "Nothing fits."})
        return iter((said,))

    def _end(self, context: EpisodeContext[None]) -> Reply:
        entry = self._entry(context.task)
        said = next(message for message in reversed(context.messages) if message["role"] == "assistant")
        calls = [cast(Any, call)["function"] for call in said.get("tool_calls") or ()]
        given = [{call["name"]: call["arguments"]} for call in calls]
        success = self._is_right(entry, given)
        context.info.update(success=success, **self._totals.of(entry.category, success=success))
        return Reply(done=True)

    def _is_right(self, entry: SingleEntry, given: list[dict[str, Any]]) -> bool:
        if entry.right is None:
            return bool(given) == (entry.category == "live_relevance")
        checker, enums = self._checker
        language = {"simple_java": "JAVA", "simple_javascript": "JAVASCRIPT"}.get(entry.category, "PYTHON")
        try:
            found = checker.ast_checker(
                list(entry.described), given, list(entry.right), enums.Language[language], entry.category, ""
            )
        except Exception:  # the package's checker expects arguments of the right shape
            return False
        return bool(found["valid"])

    def _entry(self, task: Task) -> SingleEntry:
        return self._entries[cast(Mapping[str, str], task.answer)["entry"]]

    @functools.cached_property
    def _entries(self) -> dict[str, SingleEntry]:
        return {entry.entry_id: entry for category in self._categories for entry in _read(self._package, category)}

    @functools.cached_property
    def _totals(self) -> Totals:
        return Totals(Counter(entry.category for entry in self._entries.values()))

    @functools.cached_property
    def _checker(self) -> tuple[Any, Any]:
        """The package's checker, without the clients of all models that it imports for the names of functions."""
        name = "bfcl_eval.constants.model_config"
        empty = ModuleType(name)
        empty.MODEL_CONFIG_MAPPING = {}  # type: ignore[attr-defined]
        added = sys.modules.setdefault(name, empty) is empty
        try:
            checker, enums = self._package.modules("eval_checker.ast_eval.ast_checker", "constants.enums")
        finally:
            if added:
                del sys.modules[name]
        return checker, enums


def _files(package: BenchmarkPackage, category: SingleCategory) -> list[Any]:
    name = f"BFCL_v4_{category}.json"
    answers = () if "relevance" in category else (package.file("data", "possible_answer", name),)
    return [package.file("data", name), *answers]


def _read(package: BenchmarkPackage, category: SingleCategory) -> Iterator[SingleEntry]:
    questions, *answers = _files(package, category)
    right = {row["id"]: row["ground_truth"] for path in answers for row in read_rows(path, ("id", "ground_truth"))}
    for row in read_rows(questions, ("id", "question", "function")):
        if answers and row["id"] not in right:
            raise UserError(f"bfcl_single_turn: {answers[0]} has no right calls for {row['id']}")
        gold = [{_name(name): values for name, values in call.items()} for call in right.get(row["id"], ())]
        yield SingleEntry(
            entry_id=row["id"],
            category=category,
            messages=tuple(row["question"][0]),
            described=tuple({**one, "name": _name(one["name"])} for one in row["function"]),
            right=gold if answers else None,
        )


def _name(name: str) -> str:
    return re.sub(r"\.", "_", name)


def _shown(described: Mapping[str, Any], category: SingleCategory) -> Mapping[str, Json]:
    """A function as models are shown it: values of Java and JavaScript are texts, with a hint in words."""
    syntax = _SYNTAX.get(category, "Python 3")
    parameters = json.loads(json.dumps(described["parameters"]))
    if category in _SYNTAX:
        language = syntax.split()[0]
        for one in parameters["properties"].values():
            kind = f"can be of any type of {language} object" if one["type"] == "any" else ""
            hint = f"This parameter {kind}" if kind else f"This is {language} {one['type']} type parameter"
            hint += " in string representation."
            if one["type"] in _ELEMENTS:
                hint += (
                    f" The list elements are of type {one.pop('items')['type']}; they are not in string representation."
                )
            if one["type"] == "dict" and "properties" in one:
                schema = json.dumps(one.pop("properties"))
                hint += " The dictionary entries have the following schema; they are not in string representation. "
                hint += schema
            one.update(type="string", description=f"{one['description']} {hint}")
    hint = f"Note that the provided function is in {syntax} syntax."
    description = f"{described['description']} {hint}"
    return {"name": described["name"], "description": description, "parameters": as_schema(parameters)}


def _first_of_each(allowed: Mapping[str, Any]) -> dict[str, Any]:
    """The first allowed value of each argument; "" among them says that it may be left out. Objects have lists of
    allowed values, too; deeper ones are as they are.
    """
    chosen = {}
    for key, values in allowed.items():
        several = [value for value in values if value != ""] if isinstance(values, list) else []
        if several or values == [] or not isinstance(values, list):
            chosen[key] = _first(several[0]) if several else values
    return chosen


def _first(value: Any) -> Any:
    if isinstance(value, list):
        return [_first_of_each(one) if isinstance(one, dict) else one for one in value]
    return _first_of_each(value) if isinstance(value, dict) else value


def _as_text(value: Any) -> str:
    """A literal of Java or JavaScript."""
    return value if isinstance(value, str) else json.dumps(value)
