"""What a resumed run needs: the last checkpoint, the loop's position there, the first measurement."""

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
        position, first = saved.get("position"), saved.get("first_eval")
        try:
            return cls(
                position=Position(**position) if isinstance(position, Mapping) else None,  # type: ignore[arg-type]
                first_eval=EvalResult.from_mapping(first) if isinstance(first, Mapping) else None,
            )
        except (TypeError, KeyError) as error:
            raise UserError(
                f"the run's state.json was written by another version ({error}); start a new run"
            ) from error
