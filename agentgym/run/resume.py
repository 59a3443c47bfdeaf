"""Where a resumed run continues: at its newest whole checkpoint, or at one that was asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from agentgym.errors import UserError, nearest
from agentgym.rl.loop import Position
from agentgym.run.state import RunState, read_position
from agentgym.runs.checkpoints import drop_undone, load_position, lost_rows
from agentgym.runs.folder import RunFolder
from agentgym.runs.in_flight import check_weights
from agentgym.trainer.checkpoint import check, check_adapters
from agentgym.trainer.config import LoraConfig
from agentgym.weights.shared_memory import sweep


def resumed_state(
    folder: RunFolder, model_path: Path, from_step: int | None, say: Callable[[str], None], lora: LoraConfig
) -> RunState:
    """The run's state at the checkpoint that it continues from; newer ones that are not whole are skipped with a line.

    from_step: that checkpoint and no other. A run that ended before it saved anything begins again. Raises UserError
    when no checkpoint is whole, or not that one, or when it was saved with another trainer.lora.
    """
    sweep()  # what the run left in memory if it was killed
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
        check_adapters(str(folder.checkpoint_dir(step) / "trainer"), lora)
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
