"""How a run ends: its last checkpoint is measured as the first was, and the two are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from agentgym.errors import UserError
from agentgym.evals.play import EvalResult
from agentgym.evals.statistics import PairedDifference
from agentgym.run.resume import RunState, undo_later_steps
from agentgym.run.settle import Settled, at_checkpoint, settle_sampling
from agentgym.runs.evaluations import read_record
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import Reporter


class AlreadyDoneError(UserError):
    """All steps are done and measured. result: what came of it, for a run that was killed before it could say so."""

    def __init__(self, text: str, result: TrainResult) -> None:
        super().__init__(text)
        self.result = result


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """first, last: the same held-out tasks with the same seeds; None where they were not measured.

    steps: that were done. Why they are fewer than the recipe's: nothing_left, where no group had signal any more;
    stopped, where somebody asked for it, and then the run can be resumed.
    """

    run_dir: Path
    steps: int
    first: EvalResult | None
    last: EvalResult | None
    difference: PairedDifference | None
    nothing_left: str = ""
    stopped: str = ""


async def measure_end(
    settled: Settled, folder: RunFolder, reporter: Reporter, state: RunState, total: int
) -> TrainResult:
    """Finishes the last evaluation of a run that has all its steps, `total`.

    Raises AlreadyDoneError when nothing is missing.
    """
    from agentgym.run.evaluate import evaluate  # Monarch, which the command line need not load for a result

    assert state.position is not None
    step, recipe = state.position.step, settled.recipe
    if not recipe.evaluates or step > total or folder.load_comparison().get("steps") == step:
        more = "loop.steps" if recipe.sft is None else "sft.epochs or sft.steps"
        text = f"{folder.path} is done: it is at step {step} of {total}; raise {more} to continue"
        raise AlreadyDoneError(text, _result_of(folder, step))
    reporter.note(f"all {step} steps are done; what is left is the last evaluation")
    last = await evaluate(
        settle_sampling(
            at_checkpoint(recipe, folder.checkpoint_dir(step)), folder.path, reporter.note, settled.registry
        ),
        folder,
        reporter,
        step=step,
        name=checkpoint_name(step),
        resume=True,
    )
    undo_later_steps(folder, state)
    return compare_ends(folder, reporter, step, state.first_eval, last)


def compare_ends(
    folder: RunFolder, reporter: Reporter, step: int, first: EvalResult | None, last: EvalResult
) -> TrainResult:
    """Write the comparison into the run's folder. first: None where it was not measured."""
    difference = None
    setups = [read_record(folder, one).get("setup") for one in (0, step)]
    if first is not None and setups[0] == setups[1]:
        try:
            difference = last.difference_from(first)
        except ValueError as error:
            reporter.note(f"the first checkpoint and the last are not compared: {error}")
    elif first is not None:
        reporter.note("the first checkpoint played other tasks or seeds than the last, so they are not compared")
    result = TrainResult(run_dir=folder.path, steps=step, first=first, last=last, difference=difference)
    folder.save_comparison(
        {
            "steps": step,
            "first": first.to_mapping() if first else None,
            "last": last.to_mapping(),
            "difference": asdict(difference) if difference else None,
        }
    )
    return result


def _result_of(folder: RunFolder, step: int) -> TrainResult:
    """The result as `compare_ends` saved it."""
    saved = folder.load_comparison()
    first, last = (
        EvalResult.from_mapping(one) if isinstance(one := saved.get(key), Mapping) else None
        for key in ("first", "last")
    )
    found = saved.get("difference")
    difference = PairedDifference(**found) if isinstance(found, Mapping) else None  # type: ignore[arg-type]
    return TrainResult(run_dir=folder.path, steps=step, first=first, last=last, difference=difference)


def checkpoint_name(step: int) -> str:
    return f"step-{step:06d}"
