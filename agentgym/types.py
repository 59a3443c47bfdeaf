"""The data of an episode, in the order in which it is made. Standard library only.

Axes: P prompt tokens, C completion tokens, L tokens of one sample, G episodes of one group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

from agentgym.routes import Routes
from agentgym.sandbox_spec import SandboxSpec as SandboxSpec
from agentgym.utf8 import clean_fields

Json: TypeAlias = "None | bool | int | float | str | Sequence[Json] | Mapping[str, Json]"
Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Split: TypeAlias = Literal["train", "test"]


class Message(TypedDict):
    """One chat message, in the shape that chat templates read."""

    role: Role
    content: str
    name: NotRequired[str]
    tool_calls: NotRequired[list[Mapping[str, Any]]]  # {"type": "function", "id", "function": {"name", "arguments"}}
    tool_call_id: NotRequired[str]  # of a tool message: the call that it answers


class Stop(StrEnum):
    """Why an episode ended."""

    DONE = "done"  # the environment said so
    MALFORMED = "malformed"  # a tool call could not be read, and the recipe ends the episode for it
    ABANDONED = "abandoned"  # a script or an agent's program played it and ended first
    AGENT = "agent"  # the agent's program failed: it died, hung or broke its limits
    MAX_TURNS = "max_turns"
    TURN_TOKENS = "turn_tokens"  # one turn reached its token limit before its end token
    EPISODE_TOKENS = "episode_tokens"  # the whole episode reached its token limit
    TIME = "time"
    REFUSED = "refused"  # the policy's server says that the model declined to answer
    FILTERED = "filtered"  # a content filter of the policy's server cut a turn, or took none
    ERROR = "error"


CUT = (Stop.TURN_TOKENS, Stop.EPISODE_TOKENS, Stop.TIME)  # an episode reached a limit before its end


class Outcome(StrEnum):
    """What an episode counts as. Only what is scored or invalid enters an advantage."""

    SCORED = "scored"
    INVALID = "invalid"  # the agent broke the rules: it earns the floor
    INFRA_ERROR = "infra_error"  # retried, then left out


class FinishReason(StrEnum):
    """Why one completion ended."""

    STOP = "stop"  # a stop token, which is the last of the completion's ids
    LENGTH = "length"
    TIME = "time"  # the request's time was over before
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thing to do. answer: JSON of the environment's own, which alone knows its type; the agent never sees it.

    category: the part of a benchmark that it belongs to; an evaluation gives success by it.
    """

    task_id: str
    prompt: tuple[Message, ...]
    answer: Any = None
    sandbox: SandboxSpec | None = None
    split: Split = "train"
    difficulty: int = 0
    category: str = ""

    def __post_init__(self) -> None:
        clean_fields(self, "task_id", "prompt", "category")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one completion is sampled. A seed makes it reproducible at fixed weights."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; give at least 1")
        if not 0 <= self.temperature < math.inf or not 0 < self.top_p <= 1 or self.top_k < 0:
            raise ValueError(
                f"temperature {self.temperature}, top_p {self.top_p}, top_k {self.top_k}: allowed are "
                "temperature >= 0 (0 is greedy), 0 < top_p <= 1, top_k >= 0 (0 is no limit)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """Token ids in. prompt_ids: the whole context so far.

    time_s: from its first token on; then the completion ends with what was sampled. continues: it is the next turn of
    a conversation, whose context the engine may still have. version: of the weights that sample all of it; None: it
    follows the updates. routes_from: the first token whose `Routes` are wanted of an engine that records them.
    """

    prompt_ids: Sequence[int]  # never changes: a tuple, or an `agentgym.rollout.token_prefix.TokenPrefix`
    sampling: SamplingParams
    time_s: float = math.inf
    continues: bool = False
    version: int | None = None
    routes_from: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """Completion tokens [start, end) were sampled by the weights of `version`."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Token ids out, as the sampler made them.

    completion_ids: [C], the stop token included. logprobs: [C], natural log, of the distribution that
    was sampled from (after temperature, top-k and top-p). versions: spans that cover [0, C) in order.
    queued_s: what the engine took before the first token, which is not the policy's doing. routes: of the context and
    the completion but its last token, from `GenerateRequest.routes_from` on, where the engine records them.
    """

    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[VersionSpan, ...]
    finish_reason: FinishReason
    queued_s: float = 0.0
    routes: Routes | None = None

    def __post_init__(self) -> None:
        check_sampled(self.completion_ids, self.logprobs, self.versions)


def check_sampled(token_ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[VersionSpan]) -> None:
    """Refuse sampled tokens without exactly one finite log-probability and one version each."""
    if len(token_ids) != len(logprobs):
        raise ValueError(f"{len(token_ids)} sampled tokens but {len(logprobs)} logprobs")
    if not (math.isfinite(sum(logprobs)) or all(map(math.isfinite, logprobs))) or max(logprobs, default=0.0) > 1e-4:
        raise ValueError(f"logprobs must be finite and at most 0; got {[*logprobs][:8]}")
    end = 0
    for span in versions:
        if span.start != end or span.end <= span.start:
            raise ValueError(f"version spans have a gap or an overlap at token {end}: {[*versions]}")
        end = span.end
    if end != len(token_ids):
        raise ValueError(f"version spans cover {end} of {len(token_ids)} sampled tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One completion and the exact tokens that it was sampled after.

    prompt_ids: [P], the whole context, beginning with the turn before on its branch. completion_ids, logprobs: [C].
    masked: it stays in the context of later turns, and is not trained on. routes: as the completion has them.
    """

    prompt_ids: Sequence[int]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[VersionSpan, ...]
    finish_reason: FinishReason
    masked: bool = False
    routes: Routes | None = None

    def __post_init__(self) -> None:
        check_sampled(self.completion_ids, self.logprobs, self.versions)

    @classmethod
    def of(cls, prompt_ids: Sequence[int], completion: Completion) -> Turn:
        return cls(
            prompt_ids=prompt_ids,
            completion_ids=completion.completion_ids,
            logprobs=completion.logprobs,
            versions=completion.versions,
            finish_reason=completion.finish_reason,
            routes=completion.routes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTrace:
    """One tool call and its answer.

    turn: the agent's turn that made it, from 1. arguments: by name; the text as sampled where it could not be read.
    result: what the agent was told. error: "" or the kind of the agent's mistake, see `agentgym.tools.ToolResult`;
    `broken` where the call ended the episode without an answer.
    """

    turn: int
    name: str
    arguments: Json
    result: str
    error: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxTrace:
    """One call of the episode's sandbox or session.

    name: of the method, as `run`. outcome: the status of what ran, `passed` or `failed` of a verdict, else `ok`; of a
    call that raised, the error's type. turn: the agent's turns before it. part: what made it: the place of a tool call
    in `Episode.tool_calls`, or `grade`; None for the environment's other methods and for agents.
    """

    name: str
    outcome: str
    seconds: float
    turn: int
    part: int | Literal["grade"] | None = None
    raised: bool = False


COUNTED_APART = ("unsupported", "prompt_too_long", "cut")
"""Kinds of errors that leave an episode out although nothing broke: not runnable, no token left, a cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRecord:
    """What went wrong, and where: generator, prompt, or a component as sandbox:<name>, environment:<name>.<method>,
    reward:<name>, agent:<name>, tool_format:<name>."""

    source: str
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.source}: {self.kind}: {self.message}"


def known_success(info: Mapping[str, Json], rewards: Mapping[str, float | None]) -> bool | None:
    """What `Episode.known_success` is, of an episode's `info` and the scores of its rewards."""
    said = info.get("success")
    if isinstance(said, bool):
        return said
    score = rewards.get("success")
    return bool(score) if score in (0, 1) else None


@dataclass(slots=True, kw_only=True)
class Episode:
    """One attempt at one task, as it was played and scored. The fields are in the order in which they are filled."""

    episode_id: str
    task: Task
    seed: int
    messages: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    tool_calls: list[ToolTrace] = field(default_factory=list)
    sandbox_calls: list[SandboxTrace] = field(default_factory=list)
    info: dict[str, Json] = field(default_factory=dict)  # what the environment recorded
    stop: Stop | None = None
    time_limit: str = ""  # the limit of wall time that ended it, as "rollout.generate_timeout_s = 60"
    rewards: dict[str, float | None] = field(default_factory=dict)  # None: not scored
    turn_rewards: list[float] = field(default_factory=list)  # what each turn contributed to the reward; often empty
    reward: float | None = None  # the weighted sum; None: not scored
    outcome: Outcome | None = None
    error: ErrorRecord | None = None
    retries: int = 0
    timing_s: dict[str, float] = field(default_factory=dict)
    turn_advantages: list[float] = field(default_factory=list)  # empty: all turns share the episode's
    token_advantages: list[list[float]] = field(default_factory=list)  # by turn; empty: a turn's tokens share one
    branches: list[tuple[int, ...]] = field(default_factory=list)  # see `all_branches`; empty: all turns are one
    branch_reasons: list[str] = field(default_factory=list)  # why each branch but the first began

    @property
    def success(self) -> bool:
        """Whether the environment recorded in `info` that its goal was reached; False where it recorded nothing."""
        return self.info.get("success") is True

    @property
    def known_success(self) -> bool | None:
        """Whether the goal was reached; None where neither the environment nor the reward `success` says so."""
        return known_success(self.info, self.rewards)

    @property
    def all_branches(self) -> list[tuple[int, ...]]:
        """The numbers of each branch's turns, from 0. A rewritten history begins a branch; branches may share turns."""
        return self.branches or ([tuple(range(len(self.turns)))] if self.turns else [])

    @property
    def last_branch(self) -> tuple[int, ...]:
        """The branch of the last turn; () without turns."""
        return max(self.all_branches, key=lambda branch: branch[-1], default=())

    @property
    def num_sampled_tokens(self) -> int:
        return sum(len(turn.completion_ids) for turn in self.turns)

    @property
    def num_trained_tokens(self) -> int:
        """The number of sampled tokens of turns that are not masked."""
        return sum(len(turn.completion_ids) for turn in self.turns if not turn.masked)

    def teaches(self, advantage: float) -> bool:
        """Whether a trained token has an advantage that is not 0.0. advantage: of turns without one of their own."""
        rows = self.token_advantages or [[one] for one in self.turn_advantages or [advantage] * len(self.turns)]
        return any(any(r) and t.completion_ids and not t.masked for r, t in zip(rows, self.turns, strict=True))

    @property
    def min_version(self) -> int:
        """The oldest weights that sampled a token of this episode."""
        return min(span.version for turn in self.turns for span in turn.versions)


@dataclass(slots=True, kw_only=True)
class Group:
    """Episodes of one task, compared with each other. advantages: [G], same order; None: left out."""

    group_id: int
    task: Task
    start_version: int  # the newest weights when the group began
    episodes: list[Episode] = field(default_factory=list)
    advantages: list[float | None] = field(default_factory=list)
    always_trained: bool = False  # its advantages come from the step's whole batch, whatever they are now

    @property
    def has_signal(self) -> bool:
        """Whether a token that is trained has an advantage that is not 0.0; of a group without turns, an episode."""
        if self.always_trained or not any(episode.turns for episode in self.episodes):
            return self.always_trained or any(self.advantages)
        return any(a is not None and e.teaches(a) for e, a in zip(self.episodes, self.advantages, strict=False))

    def trained(self) -> list[tuple[Episode, float]]:
        """The episodes that enter a loss, with their advantages: all that count and have a token to train."""
        pairs = zip(self.episodes, self.advantages, strict=True)
        return [(e, advantage) for e, advantage in pairs if advantage is not None and e.num_trained_tokens]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One training sequence: an episode's tokens with their provenance.

    All of length L. loss_mask: 1.0 where the policy sampled the token; elsewhere it, logprobs (the sampler's) and
    advantages are 0.0, and versions, the weights that sampled it, -1. ref_logprobs: the reference model's, or empty.
    old_logprobs: the trainer's before the first update by the batch, or empty where it makes one only. returns: what a
    critic learns, or empty. Entry t of each refers to token_ids[t]; the first token is never trained. routes: of all
    tokens, or None.
    """

    sample_id: str
    token_ids: tuple[int, ...]
    loss_mask: tuple[float, ...]
    logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    versions: tuple[int, ...]
    ref_logprobs: tuple[float, ...] = ()
    old_logprobs: tuple[float, ...] = ()
    returns: tuple[float, ...] = ()
    routes: Routes | None = None

    def __post_init__(self) -> None:
        length = len(self.token_ids)
        if self.routes is not None and (self.routes.start, len(self.routes)) != (0, length):
            raise ValueError(
                f"sample {self.sample_id}: {length} tokens, routes of {self.routes.start}:{self.routes.end}"
            )
        columns = (self.loss_mask, self.logprobs, self.advantages, self.versions)
        if any(len(column) != length for column in columns):
            raise ValueError(f"sample {self.sample_id}: {length} tokens but {[len(c) for c in columns]}")
        for name in ("ref_logprobs", "old_logprobs", "returns"):
            count = len(getattr(self, name))
            if count not in (0, length):
                raise ValueError(f"sample {self.sample_id}: {length} tokens, {count} {name}")
        if length and self.loss_mask[0]:
            raise ValueError(f"sample {self.sample_id}: the first token has no context to be trained on")

    @property
    def num_trained_tokens(self) -> int:
        return sum(1 for mask in self.loss_mask if mask)
