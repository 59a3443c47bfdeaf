"""What the processes of a run are doing, in words: who waits for whom, who is stopped, stuck or dead.

Read from the heartbeats in the run's folder (heartbeat.py), so it can be asked from outside, and of other hosts.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from agentgym.runs.folder import RunStatus, StatusRecord
from agentgym.runs.heartbeat import BEAT_BYTES, IDLE, process_space
from agentgym.runs.metrics import MetricsRow
from agentgym.runs.report import duration

QUIET_S = 60.0  # that nothing has ended for so long is worth a word
MISSED_S = 20.0  # without a heartbeat: a busy machine delays some
STUCK_S = 10.0  # in one place
BUSY_PERCENT = 5.0  # of one core
CONTROLLER = "controller"
COMPUTING = "computing"
MAX_STACK = 2**18  # bytes
MAX_CALLS = 10**5
WAITS = {  # kind of activity -> who waits, for whom
    "start": ("the run", "generator and trainer"),
    "generate": ("episodes", "generator"),
    "rollout": ("the loop", "rollout workers"),
    "sandbox": ("episodes", "sandbox"),
    "reference": ("the loop", "reference"),
    "train": ("the loop", "trainer"),
    "publish": ("the loop", "trainer and generator"),
    "save": ("the run", "trainer"),
    "evaluate": ("the run", "its evaluation"),
    "stop": ("the run", "the end of its processes"),
}
_STACK_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)')


@dataclass(frozen=True, slots=True)
class Vital:
    """One process. silent: why it is not at work; empty when it computes."""

    name: str
    pid: int
    silent: str


class Frame(NamedTuple):
    """words: what is called, and its line. since_s: for how long, line_since_s: for how long in that line, as seen."""

    words: str
    since_s: float
    line_since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """A process's last heartbeat. stack: of the thread that held the interpreter when they ended, innermost first.

    loop_silence_s: for how long its event loop has run nothing, where it says so.
    """

    name: str
    pid: int
    process_space: str
    age_s: float
    cpu_percent: float
    threads: Sequence[Sequence[Frame]] = ()  # the frames of each, outermost first
    in_flight: Mapping[str, Sequence[float]] = field(default_factory=dict)
    silence_s: float = 0.0
    loop_silence_s: float = 0.0
    stack: Sequence[str] = ()

    @property
    def is_here(self) -> bool:
        return self.process_space == process_space()


def read_pulses(logs: Path) -> list[Pulse]:
    """Reads the heartbeats of the processes that have not ended in order. One that was killed here is left out: its
    exit was seen.
    """
    found = []
    for path in sorted(logs.glob("*.beat")):
        try:
            with path.open("rb") as file:
                pulse = _pulse(json.loads(file.read(2 * BEAT_BYTES)), _stack(path.with_suffix(".stack")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
            continue  # just being written, or not by us
        if not (pulse.is_here and not psutil.pid_exists(pulse.pid)):
            found.append(pulse)
    return found


def _pulse(record: Any, stack: list[str]) -> Pulse:
    in_flight, busy = record.get("in_flight", {}), record["busy"]
    if "loop" in record:  # no other thread can keep the rest from going on
        is_held = record["loop_silence_s"] >= STUCK_S
        busy = [one for one in busy if one["thread"] == record["loop"] and is_held]
    return Pulse(
        name=str(record["name"]),
        pid=int(record["pid"]),
        process_space=str(record["place"]),
        age_s=max(0.0, time.time() - float(record["time"])),
        cpu_percent=float(record["cpu_percent"]),
        threads=[[Frame(str(words), float(s), float(line)) for words, s, line in one["frames"]] for one in busy],
        in_flight={str(kind): [float(oldest_s)] * min(int(n), MAX_CALLS) for kind, (n, oldest_s) in in_flight.items()},
        silence_s=float(record.get("silence_s", 0.0)),
        loop_silence_s=float(record.get("loop_silence_s", 0.0)),
        stack=stack,
    )


def _stack(path: Path) -> list[str]:
    """The stack of the first thread that does not wait, innermost first; empty while heartbeats come."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        text = file.read(MAX_STACK).decode(errors="replace")
    for thread in re.split(r"^(?:Current t|T)hread ", text, flags=re.MULTILINE)[1:]:
        found = [(match["name"], Path(match["file"]), match["line"]) for match in _STACK_LINE.finditer(thread)]
        own = any(file.name == "heartbeat.py" for _, file, _ in found)
        if found and not own and (found[0][0], found[0][1].name) not in IDLE:
            return [f"{name} ({file.parent.name}/{file.name}:{line})" for name, file, line in found]
    return []


def why_silent(pulse: Pulse) -> str:
    """Says what holds a process; empty for one that computes, as far as can be seen."""
    if pulse.is_here:
        try:
            if psutil.Process(pulse.pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
                return "stopped by a signal"
        except psutil.Error:
            return "dead"
    if pulse.age_s >= MISSED_S:
        where = f", called at {pulse.stack[0]}" if pulse.stack else ""
        return f"stuck in native code that holds the interpreter, for {duration(pulse.age_s)}{where}"
    if stuck := max(_stuck(pulse), key=lambda one: one[0], default=None):
        since_s, words = stuck
        return f"{words} for {duration(since_s)}"
    return "using no CPU" if pulse.cpu_percent < BUSY_PERCENT else ""


def _stuck(pulse: Pulse) -> Iterator[tuple[float, str]]:
    """Threads that have long been in one place: in one line, or in one function that goes round."""
    for frames in pulse.threads:
        held = [one for one in frames if one.since_s >= STUCK_S]
        if not held:
            continue
        last = held[-1]
        if last is frames[-1] and last.line_since_s >= STUCK_S:
            collective = any("distributed" in one.words for one in held)
            how = "waiting for other ranks" if collective else "waiting" if _idle(pulse) else COMPUTING
            yield last.line_since_s, f"{how} in {last.words}"
        else:
            yield last.since_s, f"going round in {last.words}"


def _idle(pulse: Pulse) -> bool:
    return pulse.cpu_percent < BUSY_PERCENT


def last_change(status: StatusRecord, rows: Sequence[MetricsRow], logs: Path) -> float:
    """When a run last did something, by what it has recorded: a step, its status, while it goes on a heartbeat."""
    times = [status.time, *(row.time for row in rows[-1:])]
    if status.status is RunStatus.RUNNING:
        times += [time.time() - pulse.age_s for pulse in read_pulses(logs)]
    return max(times)


def vitals(pulses: Sequence[Pulse]) -> list[Vital]:
    return [Vital(one.name, one.pid, why_silent(one)) for one in pulses]


def waited_for(in_flight: Mapping[str, Sequence[float]], vitals: Sequence[Vital]) -> list[Vital]:
    """The processes that could end a call in flight; all of them if that is not known."""
    services = {name for kind in in_flight for name in WAITS.get(kind, ("", kind))[1].split(" and ")}
    return [vital for vital in vitals if not services or vital.name.startswith((*services, CONTROLLER))]


def report(in_flight: Mapping[str, Sequence[float]], vitals: Sequence[Vital], silence_s: float) -> str:
    """in_flight: for how long each call of a kind has run, in seconds."""
    waits = []
    for kind, ages_s in in_flight.items():
        who, whom = WAITS.get(kind, ("the run", kind))
        waits.append(f"{who} wait{'s' * who.startswith('the ')} for {whom} ({len(ages_s)} x {duration(max(ages_s))})")
    text = f"nothing has ended for {duration(silence_s)}: {'; '.join(waits) or 'nothing is in flight'}"
    of_these = waited_for(in_flight, vitals)
    if silent := [f"{vital.name}, process {vital.pid}, is {vital.silent}" for vital in of_these if vital.silent]:
        return f"{text}. Silent: {'; '.join(silent)}"
    return f"still working: {text}, and all of these processes compute" if of_these else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """text: one sentence; empty where no heartbeat is there. is_stuck: whether somebody should look."""

    text: str = ""
    is_stuck: bool = False


def liveness(run: Path, *, quiet_s: float = QUIET_S) -> Liveness:
    """The liveness of a run that the caller knows to be running."""
    pulses = read_pulses(run / "logs")
    controller = next((one for one in pulses if one.name == CONTROLLER), None)
    if controller is None:
        return Liveness()
    others = [one for one in pulses if one is not controller]
    if controller.age_s >= MISSED_S:
        return Liveness(text=f"the controller, process {controller.pid}, is {why_silent(controller)}", is_stuck=True)
    if controller.loop_silence_s >= STUCK_S:
        doing = why_silent(controller) or f"busy for {duration(controller.loop_silence_s)}"
        text = f"the controller, process {controller.pid}, is {doing}: nothing else goes on meanwhile"
        return Liveness(text=text, is_stuck=True)
    if controller.silence_s >= quiet_s:
        calls, found = controller.in_flight, vitals(others)
        known = waited_for(calls, found)
        works = bool(known) and all(not one.silent or one.silent.startswith(COMPUTING) for one in known)
        return Liveness(text=report(calls, found, controller.silence_s), is_stuck=not works)
    missed = [one for one in others if one.age_s >= MISSED_S]
    if missed:
        text = "; ".join(f"{one.name}, process {one.pid}, is {why_silent(one)}" for one in missed)
        return Liveness(text=text, is_stuck=True)
    doing = ", ".join(f"{len(ages_s)} x {kind}" for kind, ages_s in controller.in_flight.items() if ages_s)
    return Liveness(text=f"{1 + len(others)} processes answer; in flight: {doing or 'nothing'}")
