"""AgentDojo's suites as its package has them: worlds, tools, tasks, and the attacks that write into the worlds."""

from __future__ import annotations

import ast
import importlib
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

from agentgym.errors import UserError, nearest
from agentgym.python_syntax import parse_expression
from agentgym.tools import ToolError
from agentgym_envs.benchmarks.functions import Functions
from agentgym_envs.benchmarks.package import BenchmarkPackage

log = logging.getLogger(__name__)

_SKIPPED: Final = ("agent_pipeline",)  # its `__init__` imports the clients of all models
_MODEL: Final = SimpleNamespace(name="local")  # the package's name of a model that it does not know
_CACHED_WORLDS: Final = 64


def read_suites(package: BenchmarkPackage, version: str, names: Sequence[str]) -> dict[str, Suite]:
    """The suites with these names, or all. Raises UserError for an unknown version or suite, and what is missing."""
    loading, execution, runtime = package.modules(
        "task_suite.load_suites", "agent_pipeline.tool_execution", "functions_runtime", skip=_SKIPPED
    )
    if version not in loading._SUITES:
        raise UserError(f"agentdojo: no version {version!r}.{nearest(version, loading._SUITES)}")
    found = loading.get_suites(version)
    for name in names:
        if name not in found:
            raise UserError(f"agentdojo: no suite {name!r}.{nearest(name, found)}")
    return {name: Suite(name, found[name], runtime, execution.tool_result_to_str) for name in names or sorted(found)}


def read_attacks(package: BenchmarkPackage) -> dict[str, Any]:
    """The attacks that write one fixed text, by name; others ask a person, or want to stop the agent altogether."""
    registry, bases, _ = package.modules(
        "attacks.attack_registry", "attacks.base_attacks", "attacks.important_instructions_attacks", skip=_SKIPPED
    )
    return {
        name: attack
        for name, attack in sorted(registry.ATTACKS.items())
        if issubclass(attack, bases.FixedJailbreakAttack) and not attack.is_dos_attack
    }


def read_instructions(package: BenchmarkPackage) -> str:
    """What the package tells an assistant before it begins."""
    yaml = importlib.import_module("yaml")  # the package depends on it
    text: str = yaml.safe_load(package.file("data", "system_messages.yaml").read_text(encoding="utf-8"))["default"]
    return text


@dataclass(slots=True)
class Suite:
    """One suite: the worlds of its tasks, and calls in them.

    found: the package's object. runtime: its module of functions. as_text: how it shows a function's result.
    """

    name: str
    found: Any
    runtime: Any
    as_text: Any
    functions: Functions = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _weak: dict[str, bool] = field(default_factory=dict)
    _worlds: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.functions = Functions(
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters.model_json_schema()}
            for tool in self.found.tools
        )

    def injections(self, attacker: Any, task_id: str, injection_id: str) -> Mapping[str, str]:
        """The texts that an attack writes into the world, by place; empty where the task reads no such place."""
        try:
            written: Mapping[str, str] = attacker.attack(
                self.found.user_tasks[task_id], self.found.injection_tasks[injection_id]
            )
        except ValueError as error:
            if "not injectable" not in str(error):
                raise
            return {}
        return written

    def attacker(self, attack: Any) -> Any:
        return attack(self.found, _MODEL)

    def world(self, task_id: str, injections: Mapping[str, str]) -> Any:
        """The task's world as it begins, with these texts in it; the caller may change it."""
        key = (task_id, tuple(sorted(injections.items())))
        with self._lock:  # episodes begin in threads
            if key not in self._worlds:
                if len(self._worlds) >= _CACHED_WORLDS:
                    self._worlds.pop(next(iter(self._worlds)))
                loaded = self.found.load_and_inject_default_environment(dict(injections))
                self._worlds[key] = self.found.user_tasks[task_id].init_environment(loaded)
            return self._worlds[key].model_copy(deep=True)

    def call(self, world: Any, name: str, arguments: Mapping[str, Any]) -> str:
        """One call, as text. Raises ToolError with one line for what was wrong with it."""
        runtime = self.runtime.FunctionsRuntime(self.found.tools)
        given = {key: _as_list(value) for key, value in arguments.items()}
        value, error = runtime.run_function(world, name, given)
        if error is not None:
            raise ToolError(f"Error: {' '.join(str(error).split())}")
        text: str = self.as_text(value)
        return text

    def is_weak(self, task_id: str) -> bool:
        """Whether the package's check passes for an agent that does nothing and says nothing."""
        if task_id not in self._weak:
            before, after = self.world(task_id, {}), self.world(task_id, {})
            self._weak[task_id] = self._passes(task_id, "", before, after, ())
        return self._weak[task_id]

    def is_useful(self, task_id: str, said: str, before: Any, after: Any, calls: Sequence[Any]) -> bool:
        """Whether the user's task was done. Where the check is weak, the agent must at least have begun as is right:
        one of its calls is of a function that the right calls use.
        """
        if self.is_weak(task_id):
            right = {call.function for call in self.found.user_tasks[task_id].ground_truth(before)}
            if not right & {call.function for call in calls}:
                return False
        return self._passes(task_id, said, before, after, calls)

    def _passes(self, task_id: str, said: str, before: Any, after: Any, calls: Sequence[Any]) -> bool:
        task = self.found.user_tasks[task_id]
        try:
            by_calls = task.utility_from_traces(said, before, after, calls)
            return bool(task.utility(said, before, after) if by_calls is None else by_calls)
        except Exception as error:
            return _not_found(f"user task {task_id} of {self.name}", error)

    def is_injected(self, injection_id: str, said: str, before: Any, after: Any, calls: Sequence[Any]) -> bool:
        """Whether what the injected text asks for was done."""
        task = self.found.injection_tasks[injection_id]
        try:
            by_calls = task.security_from_traces(said, before, after, calls)
            return bool(task.security(said, before, after) if by_calls is None else by_calls)
        except Exception as error:
            return _not_found(f"injection task {injection_id} of {self.name}", error)

    def recorded(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """A call as the checks read it."""
        return self.runtime.FunctionCall(function=name, args=dict(arguments))


def _as_list(value: Any) -> Any:
    """The package's rule: a text that is a list's literal is that list."""
    try:
        read = ast.literal_eval(parse_expression(value.lstrip())) if isinstance(value, str) else None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return value
    return read if isinstance(read, list) else value


def _not_found(what: str, error: Exception) -> bool:
    """A check that looks for what the agent has removed or never made raises: that was not done."""
    log.info("agentdojo: the check of %s raised %s: %s; it counts as not passed", what, type(error).__name__, error)
    return False
