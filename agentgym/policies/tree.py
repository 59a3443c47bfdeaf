"""The conversations of an episode as a tree of messages, in which a path has the tokens that were sampled on it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from agentgym.policies.normal_form import Heard, Key
from agentgym.tools import Schema
from agentgym.types import Message

Reason: TypeAlias = Literal["system changed", "message removed", "message altered", "tools changed", "sibling"]


@dataclass(eq=False, slots=True)
class Spoken:
    """A turn that was sampled. ids: those of its path up to its end are the first `length`; more may follow.

    claims: calls that go on from it, those under way included.
    """

    turn: int
    parent: Spoken | None
    completion_ids: tuple[int, ...]
    ids: array[int]
    length: int
    call_ids: tuple[str, ...]
    ended: bool  # by an end token
    claims: int = 0
    num_children: int = 0

    def path_ids(self) -> array[int]:
        """An array that begins with this turn's path and holds nothing else; shared where nobody went on from it."""
        return self.ids if len(self.ids) == self.length else self.ids[: self.length]


@dataclass(eq=False, slots=True)
class Node:
    """One message. spoken: of a turn that was sampled; equal turns that were sampled twice are two nodes."""

    key: Key | None
    message: Message | None
    parent: Node | None
    spoken: Spoken | None = None
    children: dict[Key, list[Node]] = field(default_factory=dict)
    latest: int = -1  # the last turn below it, itself included

    def path(self) -> list[Node]:
        """The nodes from the first message to this one."""
        nodes: list[Node] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


@dataclass(frozen=True, slots=True)
class BranchPoint:
    """Where a call's conversation leaves what is known.

    node: the last message that is known. rest: the messages after `spoken`, the last known turn; None: there is none.
    known: how many messages are known.
    """

    node: Node
    spoken: Spoken | None
    rest: list[Heard]
    known: int

    @property
    def num_ids(self) -> int:
        """How many ids of the prompt are known."""
        return 0 if self.spoken is None else self.spoken.length


class Tree:
    """Grows only when a turn has been sampled. Of no use to two event loops at once."""

    def __init__(self) -> None:
        self._roots: dict[str, tuple[Node, tuple[Schema, ...]]] = {}
        self._spoken: list[Spoken] = []
        self._nodes: list[Node] = []  # of the turns, in their order
        self.reasons: dict[int, Reason] = {}  # by the turn that began a branch
        self.branches: list[tuple[int, ...]] = []  # see Episode.branches

    def tools(self, key: str, given: tuple[Schema, ...]) -> tuple[Schema, ...]:
        """The object that stands for equal tools: renderers know them by it."""
        return self._roots[key][1] if key in self._roots else given

    def find(self, tools: str, talk: Sequence[Heard]) -> BranchPoint:
        """How far the conversation is known. Of equal turns the one that the call's ids name, else an unclaimed one."""
        if tools not in self._roots:
            return BranchPoint(Node(None, None, None), None, list(talk), 0)
        levels = [[self._roots[tools][0]]]
        for message in talk:
            found = [child for node in levels[-1] for child in node.children.get(message.key, ())]
            if not found:
                break
            levels.append(found)
        known = len(levels) - 1
        node = levels[-1][0]
        if len(levels[-1]) > 1:
            node = max(levels[-1], key=lambda one: _likelihood(one, talk))
        path = node.path()
        last = next((n for n in reversed(range(known)) if path[n].spoken is not None), None)
        if last is None:
            return BranchPoint(node, None, list(talk), known)
        return BranchPoint(node, path[last].spoken, list(talk[last + 1 :]), known)

    def add(
        self, tools: str, schemas: tuple[Schema, ...], talk: Sequence[Heard], branch_point: BranchPoint, said: Heard,
        spoken: Spoken, also: Sequence[Key] = (),
    ) -> None:  # fmt: skip
        """Record a turn. place: where `find` put its conversation. also: other keys by which it may come back."""
        others = bool(self._roots) and tools not in self._roots
        node = branch_point.node
        if node.parent is None:  # a root, and perhaps a new one
            node = self._roots.setdefault(tools, (node, schemas))[0]
        if spoken.parent.num_children if spoken.parent is not None else self._spoken:
            self.reasons[spoken.turn] = "tools changed" if others else self._reason(tools, talk)
        for message in talk[branch_point.known :]:
            node = _child(node, message)
        new = Node(said.key, said.message, node, spoken)
        for key in dict.fromkeys((said.key, *also)):
            node.children.setdefault(key, []).append(new)
        above: Node | None = new
        while above is not None:
            above.latest = spoken.turn
            above = above.parent
        if spoken.parent is not None:
            spoken.parent.num_children += 1
        self._spoken.append(spoken)
        self._nodes.append(new)
        self.branches = self._leaves() if self.reasons else []

    def branch_reasons(self) -> list[str]:
        """Why each branch but the first began."""
        known: set[int] = set()
        reasons: list[str] = []
        for branch in self.branches:
            begins = next(turn for turn in branch if turn not in known)
            if known:
                reasons.append(self.reasons[begins])
            known.update(branch)
        return reasons

    def last_conversation(self) -> list[Message]:
        """The messages that led to the last turn, and that turn; [] before the first."""
        path = self._nodes[-1].path() if self._nodes else []
        return [node.message for node in path if node.message is not None]

    def _reason(self, tools: str, talk: Sequence[Heard]) -> Reason:
        """The reason, by comparison with the latest of the conversations that share most with it."""
        branch_point = self.find(tools, talk)
        node, known = branch_point.node, branch_point.known
        if known == len(talk):
            return "sibling"
        before: list[Key] = []
        while node.children:
            node = max((one for same in node.children.values() for one in same), key=lambda one: one.latest)
            assert node.key is not None
            before.append(node.key)
        here = talk[known].key
        if here[0] == "system" or (before and before[0][0] == "system"):
            return "system changed"
        return "message removed" if here in before[1:] else "message altered"

    def _leaves(self) -> list[tuple[int, ...]]:
        """Depth first, in the order of the turns."""
        leaves = []
        for spoken in self._spoken:
            if spoken.num_children == 0:
                path = []
                above: Spoken | None = spoken
                while above is not None:
                    path.append(above.turn)
                    above = above.parent
                leaves.append(tuple(reversed(path)))
        return sorted(leaves)


def _child(node: Node, message: Heard) -> Node:
    """The one that was not sampled."""
    same = node.children.setdefault(message.key, [])
    found = next((one for one in same if one.spoken is None), None)
    if found is None:
        found = Node(message.key, message.message, node)
        same.append(found)
    return found


def _likelihood(node: Node, talk: Sequence[Heard]) -> tuple[int, int, int]:
    """How likely a conversation went through this node: by ids of our calls, then by whether no other continued it."""
    path = node.path()
    turns = [(one.spoken, message) for one, message in zip(path, talk, strict=False) if one.spoken is not None]
    same = sum(bool(spoken.call_ids) and spoken.call_ids == message.call_ids for spoken, message in turns)
    claims = turns[-1][0].claims if turns else 0
    return same, -claims, node.latest
