"""Does, between two steps, what a person asked of the run: `agentgym.runs.steering` has the file."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from agentgym.errors import InfraError
from agentgym.runs.folder import RunFolder
from agentgym.runs.steering import Request, State, Steering

EARLIER = "it was asked of an earlier process of this run"
THERE = "it was there already"
Act = Callable[[], Awaitable[bool]]


@dataclass(slots=True)
class Helm:
    """stopped: why the run ends after this step; empty as long as it goes on."""

    folder: RunFolder
    stopped: str = ""
    _steering: Steering = field(init=False)

    def __post_init__(self) -> None:
        self._steering = Steering(self.folder.path)

    def begin(self, step: int) -> None:
        """Refuse what nobody answered before this process began: a resumed run is not stopped by an old request.

        What was asked while this one was still starting waits for its first step.
        """
        began = self.folder.status().time
        for request in self._steering.waiting():
            if request.time < began:
                self._answer(request, "refused", step, EARLIER)

    async def after_step(self, step: int, *, save: Act, evaluate: Act) -> None:
        """Everything that was asked since the last step, in its order.

        save: makes a checkpoint of the step; evaluate: measures its weights. Both return whether that was done before.
        """
        for request in self._steering.waiting():
            known = await (evaluate if request.action == "evaluate" else save)()
            if request.action == "stop":
                self.stopped = f"stopped after step {step}, as it was asked to"
            self._answer(request, "applied", step, THERE if known and request.action != "stop" else "")

    def _answer(self, request: Request, state: State, step: int, text: str) -> None:
        """To those who asked, and among the run's events. A full disk ends the run elsewhere."""
        with contextlib.suppress(InfraError):
            self._steering.answer(request, state, step, text)
            self.folder.event(f"{request.action} was asked for: {state} at step {step}{text and ': '}{text}")
