"""One domain of tau2-bench as its package has it: worlds, tools, policy, and tasks with what decides their success."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from agentgym.errors import UserError
from agentgym.tools import ToolError
from agentgym_envs.benchmarks.functions import Functions, NamedCall
from agentgym_envs.benchmarks.package import BenchmarkPackage, files_hash
from agentgym_envs.tau_bench.arithmetic import compute

Tau2DomainName: TypeAlias = Literal["airline", "retail", "telecom"]
SOLO: Final = "telecom"  # the agent has the customer's telephone in its hand: the package's own mode without a customer


class Table(dict[str, Any]):
    """A world's records by key, shared by all episodes: one that is looked up is copied, and is then the episode's."""

    def __init__(self, shared: Mapping[str, Any]) -> None:
        super().__init__(shared)
        self._shared = shared
        self._own: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if key in self._own:
            return value
        self[key] = value.model_copy(deep=True)
        return super().__getitem__(key)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self._own.add(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - dict.get would not copy

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def changes(self) -> dict[str, str | None]:
        """The records that are not as in the shared table, each as a canonical text; None: it is gone."""
        changed: dict[str, str | None] = {key: None for key in self._shared if key not in self}
        for key in self._own & self.keys():
            text = _canonical(super().__getitem__(key))
            if key not in self._shared or text != _canonical(self._shared[key]):
                changed[key] = text
        return changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Tau2Case:
    """One task. found: the package's. request: what the customer wants. basis: the names of what decides.

    changed: by the right calls, in the agent's world. replies: of the right calls.
    """

    key: str
    found: Any
    request: str
    basis: frozenset[str]
    actions: tuple[NamedCall, ...]
    communicate: tuple[str, ...]
    changed: Mapping[str, object]
    replies: tuple[str, ...]

    @property
    def is_shown(self) -> bool:
        """Whether anything that is checked tells the right calls from silence."""
        checks = "ENV_ASSERTION" in self.basis or "ACTION" in self.basis
        return checks or bool(self.changed) or ("COMMUNICATE" in self.basis and bool(self.communicate))

    @property
    def for_a_judge(self) -> bool:
        """Whether a part of the official verdict is a model's, which is not asked here."""
        return "NL_ASSERTION" in self.basis and bool(self.found.evaluation_criteria.nl_assertions)


@dataclass(slots=True)
class Tau2World:
    """One episode's world, and what its calls replied. call_type: the package's class of a call."""

    environment: Any
    call_type: Any
    replies: list[str] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Raises ToolError where the reply says that the call was wrong."""
        call = self.call_type(id="", name=name, arguments=dict(arguments), requestor="assistant")
        self.calls.append(call)
        if name == "calculate":  # the package's own evaluates the text
            try:
                text, wrong = compute(str(arguments.get("expression", ""))), False
            except ValueError as error:
                text, wrong = f"Error: {error}", True
        else:
            reply = self.environment.get_response(call)
            text, wrong = str(reply.content), bool(reply.error)
        self.replies.append(text)
        if wrong:
            raise ToolError(text)
        return text

    def changes(self) -> dict[str, object]:
        """What is not as in the shared data, by table; of a small world all of it, as its hash."""
        tables = {name: table.changes() for name, table in self.environment.tools.db if isinstance(table, Table)}
        if tables:
            return {name: changed for name, changed in tables.items() if changed}
        return {"hash": self.environment.get_db_hash()}


class Tau2Domain:
    """The tools, data and policy of a domain. Raises UserError when something of the package is missing."""

    def __init__(self, package: BenchmarkPackage, name: Tau2DomainName) -> None:
        self.name = name
        package.file("domains", name, "environment.py")
        if importlib.util.find_spec("loguru"):  # else the import below says what is missing
            importlib.import_module("loguru").logger.disable(package.name)  # it writes a line for each call
        self._module, messages = package.modules(f"domains.{name}.environment", "data_model.message")
        self._call_type = messages.ToolCall
        first = self._module.get_environment(**({"solo_mode": True} if name == SOLO else {}))
        self._data = (first.tools.db, first.user_tools.db if name == SOLO else None)
        self.policy: str = first.policy
        tools = [*first.get_tools(), *(first.get_user_tools() if name == SOLO else ())]
        self.functions = Functions(tool.openai_schema["function"] for tool in tools)
        utils = package.modules(f"domains.{name}.utils")[0]
        self._folder = utils.__dict__[f"{name.upper()}_DB_PATH"].parent

    def world(self, case: Any) -> Tau2World:
        """As a task begins."""
        db, user_db = self._data
        if user_db is None:
            tables = {name: Table(value) for name, value in db if isinstance(value, dict)}
            made = self._module.get_environment(db=db.model_copy(update=tables))
        else:
            copies = {"db": db.model_copy(deep=True), "user_db": user_db.model_copy(deep=True)}
            made = self._module.get_environment(**copies, solo_mode=True)
        start = case.initial_state
        made.set_state(
            initialization_data=start and start.initialization_data,
            initialization_actions=start and start.initialization_actions,
            message_history=[],
        )
        return Tau2World(made, self._call_type)

    def cases(self) -> list[Tau2Case]:
        """Of the official set, which is called base."""
        return [self._case(task) for task in self._module.get_tasks("base")]

    def keys(self, part: Literal["train", "test"]) -> set[str]:
        """Of the tasks in a part of the official set."""
        return {f"{self.name}/{key}" for key in self._module.get_tasks_split()[part]}

    def data_hash(self) -> str:
        """SHA-256 of the domain's data and tasks."""
        return files_hash([*self._folder.glob("*db.*"), *self._folder.glob("*tasks.json"), *self._folder.glob("*.md")])

    def _case(self, task: Any) -> Tau2Case:
        criteria = task.evaluation_criteria
        if criteria is None or (task.initial_state and task.initial_state.message_history):
            raise UserError(f"tau2_bench: task {task.id!r} begins in the middle of a conversation, or has no criteria")
        actions = tuple((action.name, action.arguments) for action in criteria.actions or ())
        world = self.world(task)
        before = world.changes()
        for name, arguments in actions:
            try:
                world.call(name, json.loads(json.dumps(arguments)))
            except ToolError:
                continue
        changed = world.changes()
        return Tau2Case(
            key=f"{self.name}/{task.id}",
            found=task,
            request=task.ticket if self.name == SOLO else str(task.user_scenario.instructions),
            basis=frozenset(kind.value for kind in criteria.reward_basis),
            actions=actions,
            communicate=tuple(criteria.communicate_info or ()),
            changed={} if changed == before else changed,
            replies=tuple(world.replies),
        )


def failed_checks(case: Tau2Case, world: Tau2World, said: Sequence[str]) -> list[str]:
    """The parts of the basis that are not met, by name. A judge's part is not asked for."""
    criteria, failed = case.found.evaluation_criteria, []
    if "DB" in case.basis and world.changes() != case.changed:
        failed.append("DB")
    if "COMMUNICATE" in case.basis and not all(
        any(text.lower() in one.lower().replace(",", "") for one in said) for text in case.communicate
    ):
        failed.append("COMMUNICATE")
    if "ACTION" in case.basis and not all(
        any(action.compare_with_tool_call(call) for call in world.calls) for action in criteria.actions or ()
    ):
        failed.append("ACTION")
    if "ENV_ASSERTION" in case.basis and not all(
        world.environment.run_env_assertion(one, raise_assertion_error=False) for one in criteria.env_assertions or ()
    ):
        failed.append("ENV_ASSERTION")
    return failed


def _canonical(record: Any) -> str:
    """One text for one state, as in the benchmark's own hash."""
    return json.dumps(record.model_dump(), sort_keys=True, default=str)
