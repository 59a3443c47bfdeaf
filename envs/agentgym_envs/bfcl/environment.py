"""The environment: users who ask for several things, one after another, of an agent that works with functions."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, cast, get_args

from agentgym.env import Benchmark, Environment, EpisodeContext, Reply
from agentgym.errors import UserError, nearest
from agentgym.tools import ToolError, Tools
from agentgym.types import Json, Message, Split, Task
from agentgym_envs.benchmarks.functions import Functions, FunctionTools, call_message
from agentgym_envs.benchmarks.package import BenchmarkPackage, files_hash, in_order, refuse_training
from agentgym_envs.bfcl.entries import Category, Entry, chosen, data_files, read_entries, read_functions
from agentgym_envs.bfcl.totals import Totals
from agentgym_envs.bfcl.world import MODULES, World

CATEGORIES: Final[tuple[Category, ...]] = get_args(Category)
_FUNCTIONS: Final = "eval_checker.multi_turn_eval.func_source_code"


@dataclass(slots=True)
class Conversation:
    """An episode's state. world, gold: what the agent changes, and what the right calls change beside it.

    turn: of the user. replies: all that the agent's calls answered. calls: of the user's present turn.
    """

    entry: Entry
    world: World
    gold: World
    turn: int = 0
    calls: int = 0
    replies: list[str] = field(default_factory=list)
    tools: FunctionTools = field(init=False)

    def run(self, name: str, arguments: Mapping[str, Any]) -> str:
        self.calls += 1
        try:
            text = self.world.call(name, arguments)
        except ToolError as error:
            self.replies.append(str(error))
            raise
        self.replies.append(text)
        return text


class BfclEnvironment(Environment[Conversation]):
    """BFCL v4 multi-turn: scripted users, eight worlds of functions; every turn's state must be right.

    An episode succeeds when after each of the user's turns the worlds equal those that the right calls made, and
    all that the right calls of the turn replied was among what the agent's calls replied. The first turn that is not
    right ends it. Recorded in `info`: success (bool), turns_right, turns (int), and, when all turns are over,
    gold_changes (bool): whether the right calls changed anything at all.
    """

    name: ClassVar[str] = "bfcl"
    version: ClassVar[int] = 2
    rewards: ClassVar[Mapping[str, float]] = {"success": 1.0}
    max_turns: ClassVar[int] = 100
    splits = ("test",)
    dynamic_tools: ClassVar[bool] = True
    benchmarks: ClassVar[Mapping[str, Benchmark]] = {
        "bfcl": Benchmark(tasks=800, source="pip install bfcl-eval", licence="Apache-2.0")
    }
    requirements: ClassVar[str] = (
        "pip install --no-deps bfcl-eval, and pip install mpmath (its other dependencies are those of its own clients)"
    )

    def __init__(
        self,
        *,
        categories: Annotated[
            Sequence[Category],
            "base, miss_param (the user forgets to say something), miss_func (a function comes only in a later turn), "
            "long_context (large worlds)",
        ] = CATEGORIES,
        path: Annotated[str | None, "folder of the package bfcl_eval, or one that holds it; null: installed"] = None,
    ) -> None:
        """Raises UserError for an unknown category, and when the package is missing."""
        self._offers: dict[tuple[tuple[str, ...], frozenset[str]], Functions] = {}
        self._categories = chosen(categories, CATEGORIES, self.name)
        self._package = BenchmarkPackage.find("bfcl_eval", path, environment=self.name, requirements=self.requirements)
        for category in self._categories:
            data_files(self._package, category)

    @functools.cached_property
    def data_hash(self) -> Mapping[Category, str]:
        """SHA-256 of the files of each category."""
        return {category: files_hash(data_files(self._package, category)) for category in self._categories}

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        refuse_training(self.name, split)
        for key in in_order(self._entries, seed):
            entry = self._entries[key]
            yield Task(
                task_id=f"bfcl/{key}",
                prompt=self._says(entry, 0),
                answer={"entry": key, "data": self.data_hash[entry.category]},
                split="test",
                category=entry.category,
            )

    async def start(self, context: EpisodeContext[Conversation]) -> Conversation:
        entry = self._entry(context.task)
        context.info.update(success=False, turns_right=0, turns=len(entry.turns))
        context.info.update(self._totals.of(entry.category))
        return self._offer(Conversation(entry, World(self._classes, entry), World(self._classes, entry)))

    async def toolbox(self, context: EpisodeContext[Conversation]) -> Tools:
        return context.state.tools

    async def reply(self, context: EpisodeContext[Conversation]) -> Reply:
        """The agent has finished the user's turn: check it, and let the user go on."""
        state = context.state
        if not _is_right(state):
            return Reply(done=True)
        state.turn, state.calls = state.turn + 1, 0
        context.info["turns_right"] = state.turn
        if state.turn == len(state.entry.turns):
            changed = not state.gold.equals(World(self._classes, state.entry))
            context.info.update(success=True, gold_changes=changed)
            context.info.update(self._totals.of(state.entry.category, success=True))
            return Reply(done=True)
        self._offer(state)
        return Reply(messages=self._says(state.entry, state.turn))

    def solve(self, task: Task) -> Iterator[Message]:
        entry = self._entry(task)
        world = World(self._classes, entry)
        for turn in entry.gold:
            if turn:
                yield call_message(*((call.name, world.bound(call)) for call in turn))
            yield {"role": "assistant", "content": "Done."}

    def _says(self, entry: Entry, turn: int) -> tuple[Message, ...]:
        if turn in entry.withheld:  # the user has nothing new to say but that there are more functions
            [prompts] = self._package.modules("constants.default_prompts", skip=("constants",))
            return ({"role": "user", "content": prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC},)
        return entry.turns[turn]

    def _offer(self, state: Conversation) -> Conversation:
        """Give the agent the functions of the present turn."""
        entry = state.entry
        later = frozenset(name for turn, names in entry.withheld.items() if turn > state.turn for name in names)
        if (entry.classes, later) not in self._offers:
            described = {str(one["name"]): one for name in entry.classes for one in self._functions[name]}
            offered = Functions(one for name, one in described.items() if name not in later)
            self._offers[entry.classes, later] = offered
        state.tools = FunctionTools(self._offers[entry.classes, later], state.run, hidden=state.world)
        return state

    def _entry(self, task: Task) -> Entry:
        return self._entries[cast(Mapping[str, str], task.answer)["entry"]]

    @functools.cached_property
    def _entries(self) -> dict[str, Entry]:
        entries = [entry for category in self._categories for entry in read_entries(self._package, category)]
        for entry in entries:
            for name in entry.classes:
                if name not in MODULES:
                    raise UserError(f"bfcl: {entry.entry_id} needs the class {name!r}.{nearest(name, MODULES)}")
        return {entry.entry_id: entry for entry in entries}

    @functools.cached_property
    def _totals(self) -> Totals:
        return Totals(Counter(entry.category for entry in self._entries.values()))

    @functools.cached_property
    def _classes(self) -> dict[str, type[Any]]:
        used = {name for entry in self._entries.values() for name in entry.classes}
        names = [name for name in MODULES if name in used]
        modules = self._package.modules(*(f"{_FUNCTIONS}.{MODULES[name]}" for name in names))
        return {name: getattr(module, name) for name, module in zip(names, modules, strict=True)}

    @functools.cached_property
    def _functions(self) -> dict[str, list[Mapping[str, Json]]]:
        folder = ("data", "multi_turn_func_doc")
        return {name: read_functions(self._package.file(*folder, f"{MODULES[name]}.json")) for name in self._classes}


def _is_right(state: Conversation) -> bool:
    """Carry out the right calls of the user's turn in their own world, and compare."""
    right = state.entry.gold[state.turn]
    replies = []
    for call in right:
        try:
            replies.append(state.gold.call(call.name, state.gold.bound(call)))
        except ToolError as error:
            replies.append(str(error))
    if not right:  # nothing to do but to ask back; a change made here shows in the next turn
        return True
    left = list(state.replies)
    for text in replies:
        if text not in left:
            return False
        left.remove(text)
    return state.calls > 0 and state.world.equals(state.gold)
