"""What a resumed run needs: the loop's position at a checkpoint, the first measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from agentgym.errors import UserError
from agentgym.evals.play import EvalResult
from agentgym.rl.loop import Position
from agentgym.types import Json


@dataclass(slots=True, kw_only=True)
class RunState:
    """position: at the last checkpoint; None before the first one."""

    position: Position | None = None
    first_eval: EvalResult | None = None

    def to_mapping(self) -> dict[str, Json]:
        return {
            "position": asdict(self.position) if self.position else None,
            "first_eval": self.first_eval.to_mapping() if self.first_eval else None,
        }

    @classmethod
    def from_mapping(cls, saved: Mapping[str, Json]) -> RunState:
        """Raises UserError when the state was not written by this version of the package."""
        first = saved.get("first_eval")
        position = read_position(saved.get("position"))
        try:
            return cls(
                position=position, first_eval=EvalResult.from_mapping(first) if isinstance(first, Mapping) else None
            )
        except (TypeError, KeyError) as error:
            raise UserError(
                f"the run's state.json was written by another version ({error}); start a new run"
            ) from error


def read_position(saved: Json) -> Position | None:
    """None where none was saved. Raises UserError for anything else."""
    try:
        if not isinstance(saved, Mapping) or not saved:
            return None
        versions = tuple(saved.get("versions", ()))  # type: ignore[arg-type]
        return Position(**{**saved, "versions": versions})  # type: ignore[arg-type]
    except TypeError as error:
        raise UserError(f"its position was written by another version ({error})") from error
