"""One domain of tau-bench as its package has it: data, tools, policy, and tasks with their right calls replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from agentgym.errors import UserError
from agentgym.tools import ToolError
from agentgym_envs.benchmarks.functions import Functions, NamedCall
from agentgym_envs.benchmarks.package import BenchmarkPackage, files_hash
from agentgym_envs.tau_bench.arithmetic import compute
from agentgym_envs.tau_bench.records import Records, Table, freeze

DomainName: TypeAlias = Literal["retail", "airline"]
Part: TypeAlias = Literal["train", "dev", "test"]
PARTS: Final[Mapping[tuple[str, str], tuple[str, str]]] = {
    ("retail", "train"): ("tasks_train", "TASKS_TRAIN"),
    ("retail", "dev"): ("tasks_dev", "TASKS_DEV"),
    ("retail", "test"): ("tasks_test", "TASKS_TEST"),
    ("airline", "test"): ("tasks_test", "TASKS"),
}
"""Where the package keeps its tasks."""
ENDS: Final = "transfer_to_human_agents"  # after it the agent has nothing more to do
SAYS: Final = "respond"  # an action that is no tool: the agent said something
_ERROR: Final = "Error"  # a tool's reply begins with it when the call was wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One task. outputs: texts that the agent must say. actions: the right calls.

    faulty: some right call answers an error. changes: the right calls change the data.
    """

    key: str
    instruction: str
    actions: tuple[NamedCall, ...]
    outputs: tuple[str, ...]
    faulty: bool
    changes: bool

    @property
    def verifiable(self) -> bool:
        """Whether anything shows that the task was done: changed data, a text to say, or at least right calls."""
        return self.changes or bool(self.outputs) or bool(self.actions)


@dataclass(slots=True)
class Shop:
    """One episode's data, and what its calls replied."""

    data: dict[str, Records]
    tools: Mapping[str, Any]
    replies: list[str] = field(default_factory=list)
    called: set[str] = field(default_factory=set)

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Raises ToolError where the reply says that the call was wrong."""
        try:
            if name == "calculate":  # the package's own evaluates the text
                text = compute(str(arguments.get("expression", "")))
            else:
                text = str(self.tools[name].invoke(data=self.data, **arguments))
        except Exception as error:  # the benchmark's rule: what a tool raises is its reply
            text = f"Error: {error}"
        self.called.add(name)
        self.replies.append(text)
        if text.startswith(_ERROR):
            raise ToolError(text)
        return text

    def changes(self) -> dict[str, dict[str, str | None]]:
        """What is not as in the shared data, by table and key."""
        return {name: changed for name, table in self.data.items() if (changed := table.changes())}


class Domain:
    """The tools, data and policy of a domain. Raises UserError when something of the package is missing."""

    def __init__(self, package: BenchmarkPackage, name: DomainName) -> None:
        self.name = name
        self._package = package
        place = f"envs.{name}"
        tools, data, wiki = package.modules(f"{place}.tools", f"{place}.data", f"{place}.wiki", skip=("envs", place))
        self.policy: str = wiki.WIKI
        self.tools: dict[str, Any] = {tool.get_info()["function"]["name"]: tool for tool in tools.ALL_TOOLS}
        self.functions = Functions(tool.get_info()["function"] for tool in tools.ALL_TOOLS)
        self._tables: dict[str, Table] = {key: freeze(table) for key, table in data.load_data().items()}

    def shop(self) -> Shop:
        return Shop({name: Records(table) for name, table in self._tables.items()}, self.tools)

    def cases(self, part: Part) -> list[Case]:
        """Raises UserError for a part that the domain does not have."""
        if (self.name, part) not in PARTS:
            known = ", ".join(part for name, part in PARTS if name == self.name)
            raise UserError(f"tau_bench: the domain {self.name} has no {part} split, only {known}")
        module_name, attribute = PARTS[self.name, part]
        [module] = self._package.modules(f"envs.{self.name}.{module_name}")
        tasks = getattr(module, attribute)
        return [self._case(f"{self.name}/{part}/{index}", task) for index, task in enumerate(tasks)]

    def replay(self, actions: Sequence[NamedCall]) -> tuple[Shop, bool]:
        """The data after right calls, and whether one of them answered an error."""
        shop, faulty = self.shop(), False
        for name, arguments in actions:
            try:
                shop.call(name, arguments)
            except ToolError:
                faulty = True
        return shop, faulty

    def data_hash(self) -> str:
        """SHA-256 of the domain's data and tasks."""
        folder = self._package.folder / "envs" / self.name
        return files_hash([*folder.glob("tasks_*.py"), *(folder / "data").glob("*.json")])

    def _case(self, key: str, task: Any) -> Case:
        actions = tuple((action.name, action.kwargs) for action in task.actions if action.name != SAYS)
        shop, faulty = self.replay(actions)
        return Case(
            key=key,
            instruction=task.instruction,
            actions=actions,
            outputs=tuple(task.outputs),
            faulty=faulty,
            changes=bool(shop.changes()),
        )
