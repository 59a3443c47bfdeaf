"""The limits of an episode and how its completions are sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

BranchWeights: TypeAlias = Literal["tokens", "equal", "last"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """max_turns: None leaves it to the environment.

    cut_turns: what a turn earns that reached its limit of tokens or time before its end. floor: the least that the
    rewards can give. score: the environment answers it like any other turn, and the episode ends. mask: as score, and
    none of the episode's turns is trained on (the overlong filtering of DAPO, arXiv:2503.14476, sec. 3.4).
    episode_time_s: without waits for a session or in the engine's queue. When it is over, an episode counts like a cut
    turn where the policy's tokens took at least half of it, and is left out where the environment took more; where it
    is over in a wait for a sandbox, that one failed.
    generate_timeout_s: of one completion from its first token on; then the turn is cut. queue_timeout_s: of the wait
    before that; more is an engine that does not answer.
    malformed_calls: what a turn with a tool call that cannot be read leads to. tell: the agent is told what is wrong,
    and goes on. mask: the same, and the turn is not trained on. end: the episode ends and earns the least that the
    rewards can give. max_tool_chars: a longer result of a tool is cut, and says so.
    branch_weights: how the advantage of an episode is shared where its agent rewrote its history, and so made branches
    of its turns. tokens: every token gets it. equal: every branch weighs as much as any other. last: the branch of the
    last turn gets it, and the turns outside of it none.
    """

    max_turns: int | None = None
    max_turn_tokens: int = 256
    max_episode_tokens: int = 1024
    cut_turns: Literal["floor", "score", "mask"] = "floor"
    episode_time_s: float = 120.0
    generate_timeout_s: float = 60.0
    queue_timeout_s: float = 600.0
    env_timeout_s: float = 60.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    malformed_calls: Literal["tell", "mask", "end"] = "tell"
    max_tool_chars: int = 8000
    branch_weights: BranchWeights = "tokens"
    max_retries: int = 2
    max_infra_error_share: float = 0.25  # of the last 200 episodes; more ends the run

    def __post_init__(self) -> None:
        if self.max_turn_tokens < 1 or self.max_episode_tokens < self.max_turn_tokens:
            raise ValueError(
                f"rollout.max_turn_tokens {self.max_turn_tokens} must be at least 1 and at most "
                f"rollout.max_episode_tokens {self.max_episode_tokens}"
            )
        if self.temperature <= 0:
            raise ValueError(f"rollout.temperature is {self.temperature}; RL needs a sampled policy, give more than 0")
        if self.max_tool_chars < 1:
            raise ValueError(f"rollout.max_tool_chars is {self.max_tool_chars}; give at least 1")
        if not 0 <= self.max_infra_error_share <= 1:
            raise ValueError(f"rollout.max_infra_error_share is {self.max_infra_error_share}; give a share in [0, 1]")
