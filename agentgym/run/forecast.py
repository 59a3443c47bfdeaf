"""Says before the first step how long a step and the whole run will take, from what was played and computed here."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from agentgym.planning.machine import host_cores
from agentgym.recipe import Recipe
from agentgym.runs.report import duration
from agentgym.types import Episode, Sample

BACKWARD = 2.0  # of a forward pass; adapters need half of it, an optimizer's step less than the rest
FIRST, MOST = 64, 4096  # tokens of a probe
ENOUGH_S = 0.25  # for which a forward pass has to take, to be relied upon
LONG_S = 3600.0  # of a run: it is said what makes it shorter
LATEST = 20  # steps of a run that goes on
SOON_S = 30.0  # an evaluation that goes on for longer is not waited for

Score = Callable[[Sequence[Sample]], Awaitable[object]]
"""Computes a forward pass of samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Seconds. steps: that are left. parts: of a step, by what they are. source: what it was found from.

    shorter, evaluated: the settings that make steps and evaluations shorter, and their values.
    """

    step_s: float
    steps: int
    source: str
    evaluations_s: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)
    shorter: tuple[str, int] = ("loop.groups_per_step", 1)
    evaluated: tuple[str, int] = ("eval.tasks", 1)

    @property
    def rest_s(self) -> float:
        return self.step_s * self.steps + self.evaluations_s

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {_seconds(value)}" for name, value in self.parts.items())
        evaluations = f" and evaluations of {duration(self.evaluations_s)}" if self.evaluations_s else ""
        return (
            f"estimate: a step takes about {_seconds(self.step_s)}{f' ({parts})' if parts else ''}, {self.steps} steps"
            f"{evaluations} about {duration(self.rest_s)}; from {self.source}{self._advice()}"
        )

    def _advice(self) -> str:
        """What would make a long run shorter, and how long it would be."""
        if self.rest_s <= LONG_S:
            return ""
        steps_s = self.step_s * self.steps
        name, value = self.evaluated if self.evaluations_s > steps_s else self.shorter
        if value < 2:
            return "; fewer steps make it shorter"
        half = value // 2
        saved_s = max(steps_s, self.evaluations_s) * (1 - half / value)
        return f"; with --{name} {half} about {duration(self.rest_s - saved_s)}"


def _seconds(value: float) -> str:
    return f"{value:.1f}s" if value < 10 else duration(value)


async def token_s(score: Score, limit: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of a forward pass for each token, by passes that grow until one takes long enough. limit: of tokens.

    The first pass, which allocates, is not counted.
    """
    tokens = min(FIRST, limit)
    await score([_sample(tokens)])
    while True:
        began = clock()
        await score([_sample(tokens)])
        took_s = clock() - began
        if took_s >= ENOUGH_S or tokens >= min(limit, MOST):
            return took_s / tokens
        tokens = min(2 * tokens, limit, MOST)


def _sample(length: int) -> Sample:
    """Tokens that every vocabulary has, the last quarter of them sampled."""
    sampled = length // 4
    mask = (*(0.0,) * (length - sampled), *(1.0,) * sampled)
    zeros = (0.0,) * length
    return Sample(
        sample_id="probe",
        token_ids=tuple(5 + n % 90 for n in range(length)),
        loss_mask=mask,
        logprobs=zeros,
        advantages=zeros,
        versions=tuple(int(one) - 1 for one in mask),
    )


def passes(recipe: Recipe) -> float:
    """Forward passes that a step's tokens cost, all that is done with them together."""
    trainer = recipe.trainer
    backward = BACKWARD * (0.5 if trainer.lora.rank else 1.0) + (trainer.activation_checkpoint == "full")
    return (1.0 + backward) * trainer.epochs + recipe.needs_reference


@dataclass(slots=True, kw_only=True)
class PlayedForecast:
    """What a run of reinforcement learning will take, by the episodes that it has played so far.

    token_s: of the trainer's forward pass, None where it was not measured. cores: which processes without a GPU share.
    """

    recipe: Recipe
    note: Callable[[str], None]
    token_s: float | None = None
    clock: Callable[[], float] = time.monotonic
    cores: int = field(default_factory=host_cores)
    _said: bool = False
    _evaluating: bool = False
    _began: float = 0.0
    _total: int = 0
    _at_once: int = 1
    _tokens: int = 0
    _rewards: dict[str, list[float | None]] = field(default_factory=dict)  # by task

    def begin(self, total: int, *, evaluating: bool) -> None:
        """The first episodes are played from now on: so many of an evaluation, or those of the first step."""
        loop = self.recipe.loop
        slots = total if evaluating else loop.num_slots * loop.group_size
        self._began, self._total, self._evaluating = self.clock(), total, evaluating
        self._at_once = min(slots, self._slots)

    def add(self, episode: Episode) -> None:
        """An episode has ended. The forecast is made once enough have, unless the evaluation is over soon.

        Short ones end first: as many as are sampled at a time are waited for, or most of all.
        """
        self._rewards.setdefault(episode.task.task_id, []).append(episode.reward)
        self._tokens += max((len(turn.prompt_ids) + len(turn.completion_ids) for turn in episode.turns), default=0)
        enough = self._ended >= min(self._at_once, 0.75 * self._total)
        if enough and not self._said and (not self._evaluating or self._left * self.episode_s > SOON_S):
            self.say(self._left if self._evaluating else 0)

    @property
    def _ended(self) -> int:
        return sum(map(len, self._rewards.values()))

    @property
    def _left(self) -> int:
        return max(0, self._total - self._ended)

    @property
    def _slots(self) -> int:
        return self.recipe.generator.replicas * self.recipe.generator.max_batch

    @property
    def episode_s(self) -> float:
        """By which one more episode made it longer; many are played at a time."""
        return (self.clock() - self._began) / max(1, self._ended)

    def say(self, left: int = 0) -> None:
        """Note the forecast, if anything was played. left: episodes of an evaluation that is not over yet."""
        if self._ended:
            self._said = True
            self.note(str(self.forecast(left)))

    def forecast(self, left: int = 0) -> Forecast:
        recipe, loop = self.recipe, self.recipe.loop
        trained = loop.groups_per_step * loop.group_size
        in_flight = min(self._slots, trained * (loop.max_staleness + 1))
        # with fewer at a time each takes up to that share less time, and none where sampling waits for each token
        spread = math.sqrt(self._at_once / in_flight)
        sampling_s = self.episode_s * trained * spread * self._refills()
        parts, source = {"sampling": sampling_s}, f"the first {self._ended} episodes"
        if self.token_s is not None:
            parts["training"] = (
                trained * self._tokens / self._ended * self.token_s * passes(recipe) / recipe.trainer.procs
            )
            source += " and forward passes of the trainer"
        return Forecast(
            step_s=self._together(parts),
            steps=loop.steps,
            evaluations_s=self.episode_s * (left + self._evaluated()),
            parts=parts,
            source=source,
            shorter=("loop.groups_per_step", loop.groups_per_step),
            evaluated=("eval.tasks", recipe.eval.tasks),
        )

    def _together(self, parts: Mapping[str, float]) -> float:
        """Sampling and training overlap, unless the run is synchronous, as far as there are cores for both."""
        recipe = self.recipe
        if not recipe.loop.max_staleness:
            return sum(parts.values())
        if recipe.trainer.gpus or recipe.generator.gpus:
            return max(parts.values())
        busy = {"sampling": recipe.generator.replicas, "training": recipe.trainer.procs}
        cores_s = sum(seconds * min(self.cores, busy[name]) for name, seconds in parts.items())
        return max(*parts.values(), cores_s / self.cores)

    def _refills(self) -> float:
        """Groups that are played for each that is trained, since those whose rewards are all equal are skipped.

        It is found from the chance that two episodes of a task differ.
        """
        pairs = [pair for rewards in self._rewards.values() for pair in combinations(rewards, 2)]
        if not pairs:
            return 1.0
        differ = sum(first != second for first, second in pairs) / len(pairs)
        signal = 1.0 - (1.0 - differ) ** (self.recipe.loop.group_size - 1)
        most = 1.0 + self.recipe.loop.max_refills
        return min(most, 1.0 / signal) if signal else most

    def _evaluated(self) -> int:
        """Episodes of the evaluations between the steps and after them."""
        loop, config = self.recipe.loop, self.recipe.eval
        whole = int(config.at_end)
        if config.every_checkpoint and loop.checkpoint_every:
            whole += loop.steps // loop.checkpoint_every
        checks = loop.steps // loop.eval_every if loop.eval_every else 0
        some = min(loop.eval_tasks, config.tasks)
        found = (whole * config.tasks + checks * some) * config.samples_per_task
        return min(found, (whole + checks) * self._total) if self._evaluating else found  # a split may have fewer


def steps_forecast(rows: Sequence[Mapping[str, float]], steps: int, end_s: float = 0.0) -> Forecast | None:
    """By the latest steps of the run that goes on, whose metrics these are; None where there were none.

    steps: left. end_s: of the last evaluation.
    """
    times = [row["time/step_s"] for row in rows[-LATEST:] if "time/step_s" in row]
    if not times or steps < 1:
        return None
    step_s = statistics.median(times)
    return Forecast(step_s=step_s, steps=steps, evaluations_s=end_s, source=f"the last {len(times)} steps")


async def sft_forecast(
    recipe: Recipe, score: Score, mean_tokens: float, steps: int, evaluation_s: float, held_out_tokens: int = 0
) -> Forecast:
    """Of supervised fine-tuning.

    mean_tokens: of a conversation. evaluation_s: which the one at the end will take. held_out_tokens: of all forward
    passes that measure the loss of conversations that are not trained.
    """
    config = recipe.fine_tuning
    of_token_s = await token_s(score, recipe.trainer.seq_len)
    tokens = config.batch_size * mean_tokens
    return Forecast(
        step_s=tokens * of_token_s * passes(recipe) / recipe.trainer.procs,
        steps=steps,
        evaluations_s=evaluation_s + held_out_tokens * of_token_s / recipe.trainer.procs,
        source=f"forward passes of the trainer, for {tokens:,.0f} tokens a step",
        shorter=("sft.batch_size", config.batch_size),
        evaluated=("eval.tasks", recipe.eval.tasks),
    )


def is_probed(recipe: Recipe) -> bool:
    """Whether a forward pass of the trainer can be timed: compiling it for that would take long."""
    return not (recipe.trainer.gpus or recipe.trainer.compile or recipe.generator.engine.sleeps)
