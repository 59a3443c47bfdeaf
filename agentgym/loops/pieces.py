"""What a loop of one's own asks for besides what a recipe names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from agentgym.errors import UserError, nearest
from agentgym.import_path import import_object
from agentgym.loops.replay_buffer import ReplayBuffer
from agentgym.loops.rows import RowSource, RowStream


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """The argument of `agentgym.services(recipe, pieces=Pieces(...))`.

    replay_buffer: settings of `agentgym.loops.replay_buffer.ReplayBuffer`, over those that follow from the recipe:
    batch_size is loop.groups_per_step, max_policy_age loop.max_staleness, seed loop.seed.
    loss: `loss(logits, **targets)`, for `train_step(inputs, targets)` with tensors of the loop's own.
    rows: data sets, read by a process of their own. row_settings: of `agentgym.loops.rows.RowStream`.
    reward_functions: `(prompt, response, target) -> float`, as `agentgym.loops.rewards.RewardActor` takes them, in
    reward_replicas processes; reward_timeout_s is for one answer. completions: of a prompt, where a call of `generate`
    does not say how many. Raises UserError for what is misspelled or not there.
    """

    replay_buffer: Mapping[str, Any] = field(default_factory=dict)
    loss: Callable[..., Any] | None = None
    rows: Sequence[RowSource] = ()
    row_settings: Mapping[str, Any] = field(default_factory=dict)
    reward_functions: Sequence[Any] = ()
    completions: int = 1
    reward_replicas: int = 1
    reward_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        _check_names("replay_buffer", self.replay_buffer, ReplayBuffer, without=())
        _check_names("row_settings", self.row_settings, RowStream, without=("sources",))
        if isinstance(self.reward_functions, str):
            raise UserError(f"Pieces: reward_functions is {self.reward_functions!r}; give a list of them")
        for function in self.reward_functions:
            if isinstance(function, str):
                import_object(function)  # raises UserError here, not in another process
        if self.row_settings and not self.rows:
            raise UserError("Pieces: row_settings without rows; give the data sets, as RowSource(path=...)")
        if min(self.reward_replicas, self.completions) < 1 or self.reward_timeout_s <= 0:
            raise UserError(
                f"Pieces: reward_replicas {self.reward_replicas} and completions {self.completions} must be at least "
                f"1 and reward_timeout_s {self.reward_timeout_s:g} above 0"
            )


def _check_names(what: str, settings: Mapping[str, Any], of: type, without: Sequence[str]) -> None:
    known = [one.name for one in fields(of) if one.init and one.name not in without]
    for name in settings:
        if name not in known:
            raise UserError(f"Pieces: {what} has no setting {name!r}.{nearest(name, known)}")
