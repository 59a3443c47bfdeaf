"""Judges what a hostile program did: it is never contained without evidence that it ran."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from agentgym.sandbox import RunResult, RunStatus
from agentgym_sandboxes.audit.findings import Judgement, broken, contained, escaped, unsupported

Check: TypeAlias = Callable[[RunResult], Judgement]

MOST_CHARS = 160


def evidence(result: RunResult, kind: str) -> list[str]:
    """The program's lines of one kind of evidence: held, escaped, unsupported, made, reached."""
    prefix = f"{kind}: "
    return [line.removeprefix(prefix) for line in result.stdout.splitlines() if line.startswith(prefix)]


def one_line(text: str) -> str:
    """One line of it."""
    text = " ".join(text.split())
    return text if len(text) <= MOST_CHARS else text[: MOST_CHARS - 1] + "…"


def described(result: RunResult) -> str:
    """A result on one line."""
    said = one_line(result.stderr.strip()[-MOST_CHARS:] or result.stdout)
    return f"{result.status.value}, exit {result.exit_code}{f': {said}' if said else ''}"


def settled(result: RunResult) -> Judgement | None:
    """A judgement that no check changes: unsupported, or a line of evidence that it got through."""
    if result.status is RunStatus.UNSUPPORTED:
        return unsupported(one_line(result.stderr or "this interpreter cannot run it"))
    through = evidence(result, "escaped")
    if through:
        return escaped(one_line("; ".join(through)))
    return None


def unless_settled(judge: Check) -> Check:
    """The check that asks `judge` only about a result that is not settled already."""
    return lambda result: settled(result) or judge(result)


def refused(at_least: int) -> Check:
    """The program ends well after at least so many refusals."""

    @unless_settled
    def check(result: RunResult) -> Judgement:
        refusals, gaps = evidence(result, "held"), evidence(result, "unsupported")
        if result.status is not RunStatus.OK or len(refusals) + len(gaps) < at_least:
            return broken(f"{len(refusals)} of {at_least} attempts reported; {described(result)}")
        if not refusals:
            return unsupported(one_line("; ".join(gaps)))
        return contained(one_line("; ".join(refusals)))

    return check


def ended(*statuses: RunStatus, after: str = "") -> Check:
    """The call ends with one of these statuses, after it has printed `made: <after>`."""

    @unless_settled
    def check(result: RunResult) -> Judgement:
        if after and not any(line.startswith(after) for line in evidence(result, "made")):
            return broken(f"it never got to {after!r}; {described(result)}")
        if result.status not in statuses:
            return escaped(f"went on to its own end: {described(result)}")
        return contained(result.status.value)

    return check


def reached(at_most: int, *, at_least: int = 1) -> Check:
    """What it counted (`reached: what: number`) is within the bounds."""

    @unless_settled
    def check(result: RunResult) -> Judgement:
        counts = [int(line.rpartition(": ")[2]) for line in evidence(result, "reached")]
        if not counts or max(counts) < at_least:
            return broken(f"no count; {described(result)}")
        if max(counts) > at_most:
            return escaped(f"got to {max(counts)}, {at_most} allowed")
        return contained(f"got to {max(counts)} of {at_most}; {result.status.value}")

    return check


def left(what: str) -> Check:
    """The program prints `made: <what>` and ends well: the next-call check looks for what it left."""

    @unless_settled
    def check(result: RunResult) -> Judgement:
        if result.status is not RunStatus.OK or what not in [line.split(":")[0] for line in evidence(result, "made")]:
            return broken(f"it did not make {what!r}; {described(result)}")
        return contained(f"made {what}; nothing of it was left")

    return check


@unless_settled
def kills_itself(result: RunResult) -> Judgement:
    """It may end in any way, but it must have begun."""
    if not evidence(result, "made"):
        return broken(f"it never began; {described(result)}")
    return contained(described(result))
