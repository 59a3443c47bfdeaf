"""Runs the hostile suite against a backend: what was tried, what held, and what was left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from agentgym.errors import InfraError
from agentgym.sandbox import Capabilities, SandboxBackend, SandboxDirty, SandboxLost
from agentgym_sandboxes.audit.findings import Judgement, Outcome, Report, TrialResult, broken, escaped
from agentgym_sandboxes.audit.host import Host
from agentgym_sandboxes.audit.next_call import NextCall
from agentgym_sandboxes.audit.suite import all_trials
from agentgym_sandboxes.audit.trial import Trial

LOSSES = ("replaced_dirty_total", "replaced_backstop_total", "replaced_lost_total", "replaced_ping_total")


async def verify(
    backend: SandboxBackend,
    *,
    only: Sequence[str] | None = None,
    on_result: Callable[[TrialResult], None] | None = None,
) -> Report:
    """Run every trial on a started backend, one after another, each followed by the next-call check.

    The backend should have one container (`pool_size` 1), so that the next call goes where the trial was.
    only: names of trials or of categories. Raises ValueError for an unknown name.
    """
    began_s = time.monotonic()
    trials = chosen(only)
    capabilities = await backend.probe()
    results = []
    with Host() as host:
        examiner = Examiner(backend, capabilities, host)
        for trial in trials:
            result = await examiner.examine(trial)
            results.append(result)
            if on_result is not None:
                on_result(result)
    return Report(capabilities=capabilities, trials=tuple(results), wall_s=time.monotonic() - began_s)


def chosen(only: Sequence[str] | None) -> list[Trial]:
    """The trials of these names and categories; all for None."""
    trials = all_trials()
    if only is None:
        return list(trials)
    known = {trial.name for trial in trials} | {trial.category.value for trial in trials}
    unknown = [name for name in only if name not in known]
    if unknown:
        raise ValueError(f"no trial and no category {unknown[0]!r}; there are {', '.join(sorted(known))}")
    return [trial for trial in trials if trial.name in only or trial.category.value in only]


class Examiner:
    """Runs single trials against one backend."""

    def __init__(self, backend: SandboxBackend, capabilities: Capabilities, host: Host) -> None:
        self._backend = backend
        self._capabilities = capabilities
        self._host = host
        self._next_call: NextCall | None = None

    async def examine(self, trial: Trial) -> TrialResult:
        """One trial, and the check that it left nothing."""
        began_s = time.monotonic()
        judgement = self._unclaimed(trial) or await self._judge(trial)
        if judgement.outcome in (Outcome.ESCAPED, Outcome.BROKEN):
            self._next_call = None  # what it left must not be blamed on the next trial
        return TrialResult(
            name=trial.name,
            category=trial.category,
            tries=trial.tries,
            outcome=judgement.outcome,
            detail=judgement.detail,
            wall_s=time.monotonic() - began_s,
        )

    def _unclaimed(self, trial: Trial) -> Judgement | None:
        """Hostile code never runs where the backend does not promise to contain it."""
        for claim in ("isolated", trial.claim):
            if not getattr(self._capabilities, claim):
                return Judgement(Outcome.NOT_CLAIMED, f"{self._capabilities.backend} does not claim {claim}")
        return None

    async def _judge(self, trial: Trial) -> Judgement:
        losses = self._losses()
        try:
            next_call = await self._before()
        except (InfraError, RuntimeError) as error:
            return broken(f"no plain program works: {error}")
        try:
            judgement = await trial.attempt(self._backend, self._host)
        except (SandboxLost, SandboxDirty) as error:
            return escaped(f"destroyed its sandbox: {error}")
        except InfraError as error:
            return broken(f"the sandbox failed: {error}")
        if judgement.outcome is not Outcome.CONTAINED:
            return judgement
        try:
            difference = await next_call.difference()
        except InfraError as error:
            return escaped(f"no call after it works: {error}")
        if difference:
            return escaped(f"the next call finds: {difference}")
        if self._losses() > losses:
            return escaped(f"its sandbox had to be discarded ({judgement.detail})")
        return judgement

    async def _before(self) -> NextCall:
        """What a call sees before the trial; recorded once, and again after a trial that got through."""
        if self._next_call is None:
            next_call = NextCall(self._backend, full_python=self._capabilities.full_python)
            await next_call.start()
            self._next_call = next_call
        return self._next_call

    def _losses(self) -> float:
        """How many sandboxes were discarded because of a call: a retry hides that from the caller."""
        metrics = self._backend.metrics()
        return sum(value for name, value in metrics.items() if name.endswith(LOSSES))
