"""Where a run goes on: at its newest whole checkpoint, or behind it after its last finished step, by its journal."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

from agentgym.actors.owned_folder import sweep
from agentgym.config import to_mapping
from agentgym.errors import UserError, nearest
from agentgym.evals.play import EvalResult
from agentgym.families.quantized import Quantize
from agentgym.loops.async_rl import Position
from agentgym.run.settle import Settled
from agentgym.runs.changes import Change, values_at, with_values
from agentgym.runs.checkpoints import drop_undone, load_position, lost_rows, torn_step
from agentgym.runs.folder import RunFolder
from agentgym.runs.in_flight import check_weights
from agentgym.runs.own import PICKLE
from agentgym.runs.starts import start_of
from agentgym.trainer.checkpoint import check, check_adapters
from agentgym.trainer.config import LoraConfig
from agentgym.trainer.journal import Journal
from agentgym.types import Json

JOURNAL = "journal"  # in the run's folder
SETTINGS = ("model", "advantage", "loss", "optimizer", "trainer", "rollout.temperature", "loop.steps")
"""What a step's weights depend on besides its samples."""
OTHERS = ("gpus", "step_timeout_s", "max_restarts", "check_memory")
"""Of the trainer's settings those that change no weight."""
ONLY_SAY = ("warn", "stop")
"""Of trainer.mismatch's limits those that change none."""


@dataclass(slots=True, kw_only=True)
class RunState:
    """position: at the last checkpoint; None before the first one. first_eval_s: which `first_eval` took."""

    position: Position | None = None
    first_eval: EvalResult | None = None
    first_eval_s: float = 0.0

    def to_mapping(self) -> dict[str, Json]:
        return {
            "position": asdict(self.position) if self.position else None,
            "first_eval": self.first_eval.to_mapping() if self.first_eval else None,
            "first_eval_s": self.first_eval_s,
        }

    @classmethod
    def from_mapping(cls, saved: Mapping[str, Json]) -> RunState:
        """Raises UserError when the state was not written by this version of the package."""
        first = saved.get("first_eval")
        position = read_position(saved.get("position"))
        try:
            return cls(
                position=position,
                first_eval=EvalResult.from_mapping(first) if isinstance(first, Mapping) else None,
                first_eval_s=float(cast(float, saved.get("first_eval_s", 0.0))),
            )
        except (TypeError, KeyError) as error:
            raise UserError(
                f"the run's state.json was written by another version ({error}); start a new run"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPoint:
    """Where a process begins with a run: at the start, if nothing else is given.

    state: of the checkpoint that it loads. replayed: where the journal leads from there; None is the checkpoint itself.
    """

    state: RunState = field(default_factory=RunState)
    replayed: Position | None = None

    @property
    def position(self) -> Position:
        return self.replayed or self.state.position or Position()

    @property
    def checkpoint(self) -> int | None:
        """The step of the checkpoint that is loaded; None for a run without one."""
        return None if self.state.position is None else self.state.position.step


def find_start(
    settled: Settled,
    folder: RunFolder,
    say: Callable[[str], None],
    from_step: int | None = None,
    changes: Sequence[Change] = (),
) -> StartPoint:
    """Where a run that ended goes on. from_step: at this checkpoint, instead of as far on as possible.

    changes: those of its settings that it goes on with.
    """
    recipe = settled.recipe
    state = resumed_state(folder, settled.model, from_step, say, recipe.trainer.lora, recipe.model.quantize)
    if recipe.sft is not None or state.position is None or from_step is not None:
        return StartPoint(state=state)
    if state.position.step >= recipe.loop.steps:
        return StartPoint(state=state)
    return StartPoint(state=state, replayed=journal_position(folder, state.position.step, settled, say, changes))


def resumed_state(
    folder: RunFolder,
    model_path: Path,
    from_step: int | None,
    say: Callable[[str], None],
    lora: LoraConfig,
    quantize: Quantize = "none",
) -> RunState:
    """The run's state at the checkpoint that it continues from; newer ones that are not whole are skipped with a line.

    from_step: that checkpoint and no other. A run that ended before it saved anything begins again. Raises UserError
    when no checkpoint is whole, or not that one, or when it was saved with another trainer.lora or
    model.quantize.
    """
    sweep()  # what the run left in memory if it was killed
    others = [step for step in folder.checkpoint_steps() if (folder.checkpoint_dir(step) / PICKLE).is_file()]
    if others and not folder.has_state:
        raise UserError(
            f"the checkpoints of {folder.path} were saved by services.save, and only its own loop goes on from them: "
            "start that program again with services.load, or start a new run from the last one's weights with "
            f"--model.path {folder.checkpoint_dir(others[-1])}"
        )
    if not folder.has_state and from_step is None:
        drop_undone(folder, -1)
        say("it ended before it had saved anything, so it begins again")
        return RunState()
    state = RunState.from_mapping(folder.load_state())
    steps = folder.checkpoint_steps(unfinished=True)
    if from_step is not None and from_step not in steps:
        hint = nearest(str(from_step), map(str, steps))
        raise UserError(f"{folder.path} has no checkpoint of step {from_step}.{hint}")
    problems = []
    for step in reversed(steps) if from_step is None else [from_step]:
        try:
            state.position = _whole(folder, step, model_path, state.position)
        except UserError as error:
            problems.append(f"the checkpoint of step {step} is skipped: {error}")
            continue
        for problem in problems:
            say(problem)
        if lost := lost_rows(folder, step):
            shown = ", ".join(map(str, lost[:5])) + (" and more" if len(lost) > 5 else "")
            say(f"metrics.jsonl has no whole row of step {shown}; --from-step with an earlier checkpoint does it again")
        check_adapters(str(folder.checkpoint_dir(step) / "trainer"), lora, quantize)
        return state
    raise UserError("\n".join([f"{folder.path} has no whole checkpoint to continue from", *problems]))


def undo_later_steps(folder: RunFolder, state: RunState) -> None:
    """Make the run one that never went beyond the state's position."""
    assert state.position is not None
    folder.save_state(state.to_mapping())
    drop_undone(folder, state.position.step)


def _whole(folder: RunFolder, step: int, model_path: Path, last: Position | None) -> Position:
    """The position of a checkpoint. last: of the run's state. Raises UserError when it could not be loaded."""
    saved = load_position(folder, step)
    position = read_position(saved)
    if position is None and last is not None and last.step == step:
        position = last  # an older version wrote positions into the state alone
    if position is None:
        raise UserError("its save was not finished")
    if position.step != step:
        raise UserError(f"its position is of step {position.step}")
    check(str(folder.checkpoint_dir(step) / "trainer"), str(model_path), step=step)
    check_weights(folder, step, position.versions)
    return position


def journal_position(
    folder: RunFolder, checkpoint: int, settled: Settled, say: Callable[[str], None], changes: Sequence[Change] = ()
) -> Position | None:
    """The position after the last finished step, if the journal leads there from this step's checkpoint; else None.

    A journal that can't be used costs the steps since the checkpoint and nothing else, so it is reported in a line. A
    deterministic run repeats them exactly, and needs what only the checkpoint has: the groups that were under way.
    """
    recipe = settled.recipe
    if recipe.loop.deterministic:
        return None
    try:
        position = read_position(Journal(folder.path / JOURNAL).position(checkpoint))
    except UserError as error:
        say(f"the journal is not used: {error}")
        return None
    if position is None:
        return None
    if recipe.needs_reference and recipe.trainer.reference_every:
        say("the journal is not used: the reference model follows the policy, and is saved with checkpoints alone")
        return None
    config = start_of(folder, position.step).config
    if problem := torn_step(folder, checkpoint, position.step, episodes=_saves_episodes(config)):
        say(f"steps {checkpoint + 1} to {position.step} are done again from the checkpoint: {problem}")
        return None
    before = _settings(config)
    after = _settings(with_values(to_mapping(recipe), values_at(changes, position.step)))
    if changed := [name for name in SETTINGS if before[name] != after[name]]:
        say(
            f"steps {checkpoint + 1} to {position.step} are done again from the checkpoint, not from the journal: it "
            f"can only repeat them with the settings that they had, and {', '.join(changed)} changed"
        )
        return None
    say(f"steps {checkpoint + 1} to {position.step} are trained again from the journal; none is sampled again")
    return position


def _saves_episodes(config: Mapping[str, object]) -> bool:
    logging = config.get("logging")
    return not isinstance(logging, Mapping) or logging.get("save_episodes") is not False


def _settings(config: Mapping[str, object]) -> dict[str, object]:
    """The settings as JSON has them: tuples are lists."""
    found: dict[str, object] = {}
    for name in SETTINGS:
        value: object = config
        for key in name.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, Mapping):
            value = {
                key: _that_act(one) if key == "mismatch" else one for key, one in value.items() if key not in OTHERS
            }
        found[name] = json.loads(json.dumps(value))
    return found


def _that_act(value: object) -> object:
    """Limits of the mismatch, without those that change no weight."""
    if not isinstance(value, Mapping):
        return value
    return {key: _that_act(one) for key, one in value.items() if key not in ONLY_SAY}


def read_position(saved: Json) -> Position | None:
    """None where none was saved. Raises UserError for anything else."""
    try:
        if not isinstance(saved, Mapping) or not saved:
            return None
        versions = tuple(saved.get("versions", ()))  # type: ignore[arg-type]
        return Position(**{**saved, "versions": versions})  # type: ignore[arg-type]
    except TypeError as error:
        raise UserError(f"its position was written by another version ({error})") from error
