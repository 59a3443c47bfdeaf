"""What a loop of one's own goes on with: its checkpoints hold where it was, besides the trainer and the model."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym.errors import UserError, nearest
from agentgym.runs.files import write_whole
from agentgym.runs.folder import RunFolder
from agentgym.runs.own import PICKLE, PICKLE_MARK, is_marked, mark
from agentgym.trainer.checkpoint import check
from agentgym.types import Json

FILE = PICKLE  # written last: a checkpoint without it is an unfinished save


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopState:
    """optimizer_steps: the trainer's count; a loop may leave steps out. rows: None where there are none."""

    optimizer_steps: int
    dataset: dict[str, Json]
    replay_buffer: dict[str, Any]
    rows: dict[str, Any] | None


def pickled(state: LoopState) -> bytes:
    """Pickles the state as it is now. Raises UserError for an item of the buffer that can't be pickled."""
    try:
        return pickle.dumps(state)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UserError(
            f"what the replay buffer or the rows hold can't be saved ({error}); add values that can be pickled"
        ) from error


def save_loop(checkpoint: Path, state: bytes) -> None:
    """Finish a checkpoint. state: as `pickled` gave it."""
    write_whole(checkpoint / FILE, state)
    mark(checkpoint / FILE, PICKLE_MARK)


def find_saved(
    run: RunFolder, step: int | None, model_path: Path, say: Callable[[str], None]
) -> tuple[int, LoopState] | None:
    """The newest whole checkpoint, or that of `step` and no other; None where the run has none.

    Raises UserError where one was asked for, or none of those that are there is whole.
    """
    steps = run.checkpoint_steps(unfinished=True)
    if step is not None and step not in steps:
        raise UserError(f"{run.path} has no checkpoint of step {step}.{nearest(str(step), map(str, steps))}")
    problems = []
    for one in reversed(steps) if step is None else [step]:
        try:
            state = _read(run.checkpoint_dir(one), model_path)
        except UserError as error:
            problems.append(f"the checkpoint of step {one} is skipped: {error}")
            continue
        for problem in problems:
            say(problem)
        return one, state
    if problems:
        raise UserError("\n".join([f"{run.path} has no whole checkpoint to go on from", *problems]))
    return None


def _read(checkpoint: Path, model_path: Path) -> LoopState:
    path = checkpoint / FILE
    if not path.is_file():
        raise UserError(f"it has no {FILE}: it was not saved by services.save, or its save was not finished")
    if not is_marked(path, PICKLE_MARK):
        raise UserError(
            f"{path} can't be read: it is damaged, or was not written by you with this home folder. It can run any "
            "code; if you trust it, give --trust (in Python: services(..., trust=True)), once"
        )
    try:
        state = pickle.loads(path.read_bytes())
    except Exception as error:  # a damaged pickle raises anything
        raise UserError(f"{path} can't be read ({type(error).__name__}: {error})") from error
    if not isinstance(state, LoopState):
        raise UserError(f"{path} holds a {type(state).__name__}, not the state of a loop")
    check(str(checkpoint / "trainer"), str(model_path), step=state.optimizer_steps)
    return state
