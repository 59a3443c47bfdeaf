"""The limits of an episode and how its completions are sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

BranchWeights: TypeAlias = Literal["tokens", "equal", "last"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """The limits of an episode, and how its tokens are sampled."""

    workers: int = 0
    """Processes that play the episodes of training, on any of the hosts; 0 plays them in the controller. Each opens the
    environment, its rewards, the agent and a sandbox of its own, within generator.start_timeout_s. Evaluations are
    played in the controller."""
    max_turns: int | None = None
    """The agent's turns at most; null leaves it to the environment."""
    max_turn_tokens: int = 256
    """Tokens that the policy may sample in one turn; a longer turn is cut."""
    max_episode_tokens: int = 1024
    """Tokens of a whole episode, prompts and answers of the environment included."""
    compact_at: int = 0
    """Tokens of a context at which the built-in loop has the policy summarise the conversation, within max_turn_tokens,
    and go on with the task and its summary; 0 never does. Each context, of at most max_episode_tokens, is a sample of
    its own, and summaries are trained like other turns. Leave room for an answer of the environment and the summary."""
    cut_turns: Literal["floor", "score", "mask"] = "floor"
    """What follows a turn that reached its limit of tokens or time: `floor` gives the least that the rewards can give,
    `score` lets the environment answer it like any other turn and ends the episode, `mask` does the same and trains on
    none of the episode's turns (overlong filtering of DAPO, arXiv:2503.14476, sec. 3.4)."""
    episode_time_s: float = 120.0
    """Seconds of an episode, without waits for a sandbox's session or in the engine's queue. Then it counts like a cut
    turn where the policy's tokens took at least half of the time, and is left out where the environment took more, or
    where it was waiting for a sandbox."""
    generate_timeout_s: float = 60.0
    """Seconds of one completion from its first token on; then the turn is cut."""
    queue_timeout_s: float = 600.0
    """Seconds that a completion may wait for its first token; then the engine failed, and the episode is repeated."""
    env_timeout_s: float = 60.0
    """Seconds of one call into the environment; then the environment has failed."""
    temperature: float = 1.0
    """The sampling temperature; the trainer computes log-probabilities at the same one."""
    top_p: float = 1.0
    """Sample among the likeliest tokens that together have this probability; 1 is all."""
    top_k: int = 0
    """Sample among so many of the likeliest tokens; 0 is all."""
    malformed_calls: Literal["tell", "mask", "end"] = "tell"
    """What follows a tool call that cannot be read: `tell` reports the error to the agent, which goes on, `mask` does
    the same and does not train on that turn, `end` ends the episode with the least that the rewards can give."""
    max_tool_chars: int = 8000
    """Characters of a tool's result; a longer one is cut, with a note that says so."""
    branch_weights: BranchWeights = "tokens"
    """How an episode's advantage is shared where its agent rewrote its history and so made branches: `tokens` gives it
    to every token, `equal` gives each branch the same weight, `last` gives it to the branch of the last turn alone."""
    max_retries: int = 2
    """How often an episode is played again after infrastructure failed."""
    max_infra_error_share: float = 0.25
    """The share of the last 200 episodes that infrastructure may break; more ends the run."""

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise ValueError(f"rollout.workers is {self.workers}; give 0 for none, or how many")
        if self.max_turn_tokens < 1 or self.max_episode_tokens < self.max_turn_tokens:
            raise ValueError(
                f"rollout.max_turn_tokens {self.max_turn_tokens} must be at least 1 and at most "
                f"rollout.max_episode_tokens {self.max_episode_tokens}"
            )
        if self.compact_at and not 0 < self.compact_at <= self.max_episode_tokens - self.max_turn_tokens:
            raise ValueError(
                f"rollout.compact_at is {self.compact_at}; give 0 for never, or at most "
                f"{self.max_episode_tokens - self.max_turn_tokens}, so that rollout.max_episode_tokens "
                f"{self.max_episode_tokens} leaves the summary its rollout.max_turn_tokens {self.max_turn_tokens}"
            )
        if self.temperature <= 0:
            raise ValueError(f"rollout.temperature is {self.temperature}; RL needs a sampled policy, give more than 0")
        if self.max_tool_chars < 1:
            raise ValueError(f"rollout.max_tool_chars is {self.max_tool_chars}; give at least 1")
        if not 0 <= self.max_infra_error_share <= 1:
            raise ValueError(f"rollout.max_infra_error_share is {self.max_infra_error_share}; give a share in [0, 1]")
