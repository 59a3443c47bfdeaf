"""Judges what a hostile program did. Without evidence that it ran, it is never contained."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from agentgym.sandbox import RunResult, RunStatus
from agentgym_sandboxes.audit.findings import Judgement, broken, contained, escaped, unsupported

Check: TypeAlias = Callable[[RunResult], Judgement]

MOST_CHARS = 160


def evidence(result: RunResult, kind: str) -> list[str]:
    """What a program said about one kind of thing: held, escaped, unsupported, made, reached."""
    prefix = f"{kind}: "
    return [line.removeprefix(prefix) for line in result.stdout.splitlines() if line.startswith(prefix)]


def short(text: str) -> str:
    """One line of it."""
    text = " ".join(text.split())
    return text if len(text) <= MOST_CHARS else text[: MOST_CHARS - 1] + "…"


def told(result: RunResult) -> str:
    """A result on one line."""
    said = short(result.stderr.strip()[-MOST_CHARS:] or result.stdout)
    return f"{result.status.value}, exit {result.exit_code}{f': {said}' if said else ''}"


def first_look(result: RunResult) -> Judgement | None:
    """What settles it for every check: unsupported, or a line that says that it got through."""
    if result.status is RunStatus.UNSUPPORTED:
        return unsupported(short(result.stderr or "this interpreter can't run it"))
    through = evidence(result, "escaped")
    if through:
        return escaped(short("; ".join(through)))
    return None


def refused(at_least: int) -> Check:
    """The program ends well, having been refused at least so often."""

    def check(result: RunResult) -> Judgement:
        early = first_look(result)
        if early is not None:
            return early
        refusals, gaps = evidence(result, "held"), evidence(result, "unsupported")
        if result.status is not RunStatus.OK or len(refusals) + len(gaps) < at_least:
            return broken(f"{len(refusals)} of {at_least} attempts told; {told(result)}")
        if not refusals:
            return unsupported(short("; ".join(gaps)))
        return contained(short("; ".join(refusals)))

    return check


def ended(*statuses: RunStatus, after: str = "") -> Check:
    """The call is ended with one of these statuses, after it has said `made: <after>`."""

    def check(result: RunResult) -> Judgement:
        early = first_look(result)
        if early is not None:
            return early
        if after and not any(line.startswith(after) for line in evidence(result, "made")):
            return broken(f"it never got to {after!r}; {told(result)}")
        if result.status not in statuses:
            return escaped(f"went on to its own end: {told(result)}")
        return contained(result.status.value)

    return check


def reached(at_most: int, *, at_least: int = 1) -> Check:
    """What it counted (`reached: what: number`) stays within bounds, and it got some way."""

    def check(result: RunResult) -> Judgement:
        early = first_look(result)
        if early is not None:
            return early
        counts = [int(line.rpartition(": ")[2]) for line in evidence(result, "reached")]
        if not counts or max(counts) < at_least:
            return broken(f"no count; {told(result)}")
        if max(counts) > at_most:
            return escaped(f"got to {max(counts)}, {at_most} allowed")
        return contained(f"got to {max(counts)} of {at_most}; {result.status.value}")

    return check


def left(what: str) -> Check:
    """The program says `made: <what>` and ends well: what it left is for the next-call check to find."""

    def check(result: RunResult) -> Judgement:
        early = first_look(result)
        if early is not None:
            return early
        if result.status is not RunStatus.OK or what not in [
            line.split(":")[0] for line in evidence(result, "made")
        ]:
            return broken(f"it did not make {what!r}; {told(result)}")
        return contained(f"made {what}; nothing of it was left")

    return check


def kills_itself(result: RunResult) -> Judgement:
    """It ends however it likes, but it must have begun."""
    early = first_look(result)
    if early is not None:
        return early
    if not evidence(result, "made"):
        return broken(f"it never began; {told(result)}")
    return contained(told(result))
