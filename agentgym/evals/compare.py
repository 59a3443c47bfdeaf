"""Compares two saved evaluations: episodes are paired by task and seed, and tasks are the independent draws."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from agentgym.errors import UserError
from agentgym.evals.play import EvalResult, EvalSetup, Measure, counted_success, task_digest
from agentgym.evals.statistics import PairedDifference, paired_difference, unrecorded
from agentgym.runs.evaluations import read_record
from agentgym.runs.folder import RunFolder
from agentgym.types import Json, Outcome
from agentgym.yaml import flat, value_at

NUM_NAMED = 3  # tasks that a message names
NOT_COMPARED = ("model.path", "model.random_weights", "logging.", "policy.base_url", "policy.api_key_env",
                "policy.concurrency", "policy.timeout_s", "policy.max_", "policy.requests_", "policy.tokens_",
                "policy.price_", "policy.currency", "policy.cache")  # fmt: skip

CHECKPOINT = re.compile(r"checkpoints/step-\d+/?$")
"""Ends the path of weights that a run made."""
PLAYED = ("env.", "agent.", "rewards", "rollout.", "sandbox.", "eval.", "policy.", "model.", "plugins.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """One episode. counted: whether nothing broke. success, reward: None where not counted, or not known."""

    episode_id: str
    counted: bool
    success: bool | None
    reward: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A finished evaluation in a folder. plays: by task and seed. digests: of the tasks."""

    name: str
    folder: RunFolder
    step: int
    setup: EvalSetup
    result: EvalResult
    plays: dict[str, dict[int, Play]] = field(repr=False)
    digests: dict[str, str] = field(repr=False)

    @property
    def is_trained(self) -> bool:
        """Whether a run made the weights: otherwise the config's training settings say nothing about them."""
        path = str(value_at(self.folder.load_config(), "model.path"))
        return not self.folder.only_evaluates or CHECKPOINT.search(path) is not None

    @classmethod
    def load(cls, folder: RunFolder, step: int, name: str) -> Saved | None:
        """None when the folder has no finished evaluation of the step."""
        record = read_record(folder, step)
        setup = cast("dict[str, Json]", record.get("setup", {}))
        if shard := setup.get("shard"):
            raise UserError(
                f"{folder.path} is shard {shard} of an evaluation; make one of all shards first: "
                "agentgym eval merge SHARD... --output FOLDER"
            )
        if not record.get("result"):
            return None
        plays: dict[str, dict[int, Play]] = {}
        digests: dict[str, str] = {}
        episodes = [saved.episode for saved in folder.read_episodes(step, evaluation=True)]
        missing = unrecorded(e.known_success for e in episodes if e.outcome is not Outcome.INFRA_ERROR)
        for one in episodes:
            counted = one.outcome is not Outcome.INFRA_ERROR
            plays.setdefault(one.task.task_id, {})[one.seed] = Play(
                episode_id=one.episode_id,
                counted=counted,
                success=counted_success(one, missing),
                reward=one.reward if counted else None,
            )
            digests[one.task.task_id] = task_digest(one.task)
        return cls(
            name=name,
            folder=folder,
            step=step,
            setup=EvalSetup.from_mapping(setup),
            result=EvalResult.from_mapping(cast("dict[str, Json]", record["result"])),
            plays=plays,
            digests=digests,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPair:
    """One task of both: the successes among its pairs of episodes, and their ids, which are the same on both sides
    where the evaluations numbered the tasks alike."""

    task_id: str
    num_pairs: int
    first: int
    second: int
    first_episodes: tuple[str, ...]
    second_episodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Second minus first. success: None where one side's environment recorded none. reward: None where tasks were not
    given one. num_unpaired: episodes that the other side has no partner for, or that could not be counted. won, lost:
    tasks that the second solved more or less often."""

    success: PairedDifference | None
    reward: PairedDifference | None
    num_pairs: int
    num_unpaired: int
    won: tuple[TaskPair, ...]
    lost: tuple[TaskPair, ...]

    @property
    def main(self) -> PairedDifference:
        """The difference that decides: of success, or of the reward where success is unknown."""
        found = self.success or self.reward
        assert found is not None
        return found

    @property
    def measure(self) -> Measure:
        """What `main` is of."""
        return "success" if self.success else "reward"


def mismatches(first: Saved, second: Saved) -> list[str]:
    """Why the two did not play the same; empty when every difference between them is the policy's."""
    a, b = first.setup, second.setup
    found = []
    if a.environment != b.environment:
        found.append(f"environments: {a.environment} and {b.environment}")
    elif a.version != b.version:
        found.append(f"versions of {a.environment}: {a.version} and {b.version}")
    only = [sorted(x.keys() - y.keys()) for x, y in ((first.digests, second.digests), (second.digests, first.digests))]
    if any(only):
        both = len(first.digests.keys() & second.digests.keys())
        found.append(
            f"tasks: {both} are in both, {len(only[0])} in the first alone{_some(only[0])}, "
            f"{len(only[1])} in the second alone{_some(only[1])}"
        )
    changed = sorted(t for t in first.digests.keys() & second.digests.keys() if first.digests[t] != second.digests[t])
    if changed:
        found.append(f"data: {len(changed)} tasks have another prompt or answer{_some(changed)}")
    if a.seed != b.seed:
        found.append(f"seeds: eval.seed is {a.seed} and {b.seed}")
    return found


def compare(first: Saved, second: Saved) -> Comparison:
    """Compares the tasks that both played.

    Raises UserError when fewer than two tasks are left, or neither success nor reward is known of them.
    """
    tasks = [task for task in first.plays if task in second.plays]
    pairs = [_pairs(first.plays[task], second.plays[task]) for task in tasks]
    kept = [(task, a, b) for task, (a, b) in zip(tasks, pairs, strict=True) if a and b]
    if len(kept) < 2:
        raise UserError(f"{len(kept)} tasks have counted episodes on both sides; a comparison needs at least 2")
    plays = [play for _, a, b in kept for play in (*a, *b)]
    known, scored = (all(getattr(play, name) is not None for play in plays) for name in ("success", "reward"))
    if not known and not scored:
        raise UserError("neither success nor a reward is known of all episodes, so there is nothing to compare")
    moved = [
        TaskPair(
            task_id=task,
            num_pairs=min(len(a), len(b)),
            first=sum(play.success is True for play in a),
            second=sum(play.success is True for play in b),
            first_episodes=tuple(play.episode_id for play in a),
            second_episodes=tuple(play.episode_id for play in b),
        )
        for task, a, b in kept
    ]
    share = [(one.first / len(one.first_episodes), one.second / len(one.second_episodes)) for one in moved]
    return Comparison(
        success=paired_difference([[x] for x, _ in share], [[y] for _, y in share], shares=True) if known else None,
        reward=paired_difference(
            [[p.reward for p in a] for _, a, _ in kept], [[p.reward for p in b] for _, _, b in kept]
        )
        if scored
        else None,
        num_pairs=sum(one.num_pairs for one in moved),
        num_unpaired=sum(len(row) for side in (first, second) for row in side.plays.values()) - len(plays),
        won=tuple(one for one, (x, y) in zip(moved, share, strict=True) if y > x),
        lost=tuple(one for one, (x, y) in zip(moved, share, strict=True) if y < x),
    )


def config_differences(
    first: Mapping[str, object], second: Mapping[str, object], *, trained: bool
) -> list[tuple[str, str, str]]:
    """Fields by dotted key that differ between two configs, with both values; without the model's own path.

    trained: whether runs made the weights of both; otherwise only fields that decide what is played are compared.
    """
    a, b = flat(first), flat(second)
    keys = [key for key in {**a, **b} if a.get(key) != b.get(key) and not key.startswith(NOT_COMPARED)]
    keys = [key for key in keys if trained or key.startswith(PLAYED)]
    return [(key, str(a.get(key, "-")), str(b.get(key, "-"))) for key in keys]


def _pairs(first: Mapping[int, Play], second: Mapping[int, Play]) -> tuple[list[Play], list[Play]]:
    """The counted episodes of one task: pairs with the same seed, or all where no seed is in both."""
    if seeds := [seed for seed in first if seed in second]:
        seeds = [seed for seed in seeds if first[seed].counted and second[seed].counted]
        return [first[seed] for seed in seeds], [second[seed] for seed in seeds]
    a, b = ([play for play in side.values() if play.counted] for side in (first, second))
    return a, b


def _some(tasks: Sequence[str]) -> str:
    more = ", ..." if len(tasks) > NUM_NAMED else ""
    return f" ({', '.join(tasks[:NUM_NAMED])}{more})" if tasks else ""
