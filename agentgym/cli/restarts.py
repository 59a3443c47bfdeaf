"""`--restarts N`: a small parent, which resumes a run whose process failed or was killed."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from agentgym.cli.failures import FAILED
from agentgym.commands.parser import Parser
from agentgym.commands.stopping import Stopped, signals_to
from agentgym.errors import InfraError, UserError
from agentgym.runs.folder import RunFolder, RunStatus

PR_SET_PDEATHSIG = 1  # linux/prctl.h
MAX_WAIT_S = 60.0


def add_ending_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--restarts",
        type=int,
        default=0,
        metavar="N",
        help="resume up to N times when it fails or its process is killed",
    )
    parser.add_argument(
        "--grace",
        type=float,
        metavar="S",
        help="on SIGTERM save first, for at most S seconds; the exit code is then 75",
    )


def check_ending_arguments(arguments: argparse.Namespace) -> None:
    if arguments.restarts < 0:
        raise UserError(f"--restarts is {arguments.restarts}; give how often the run may be resumed, 0 for never")
    if arguments.grace is not None and arguments.grace <= 0:
        raise UserError(f"--grace is {arguments.grace:g}; give the seconds between SIGTERM and the end, for example 60")


@dataclass(slots=True, kw_only=True)
class Restarts:
    """command: how the run is started. words: of the first start, without --restarts, with the name that path has.

    flags: what a resume is given besides the folder. warn: takes the lines that say what happened.
    """

    path: Path
    command: Sequence[str]
    words: Sequence[str]
    flags: Sequence[str]
    at_most: int
    warn: Callable[[str], None]
    first_wait_s: float = 1.0
    _process: subprocess.Popen[bytes] | None = field(init=False, default=None)
    _asked: list[int] = field(init=False, default_factory=list)

    def run(self) -> int:
        """The exit code of the last process, as a shell would give it."""
        words, is_new = [*self.command, *self.words], not self.path.exists()
        with self._passing_signals_on():
            for number in range(self.at_most + 1):
                code = self._once(words)
                if self._asked or not (code < 0 or code == FAILED) or number == self.at_most:
                    break
                how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                if not self.path.is_dir():  # it failed before there was a run
                    break
                folder = RunFolder.open(self.path)
                if folder.status().status is RunStatus.DONE:
                    return 0
                if folder.has_state:
                    words = [*self.command, "--resume", str(self.path), *self.flags]
                elif is_new:
                    folder.remove()  # nothing was saved in it: it begins again
                self._report(f"the run's process was {how}: restart {number + 1} of at most {self.at_most}")
                time.sleep(min(MAX_WAIT_S, self.first_wait_s * 2**number))
        return code if code >= 0 else 128 - code

    def _once(self, words: Sequence[str]) -> int:
        """A group of its own: Ctrl-C in the terminal reaches it once, through this process."""
        with subprocess.Popen(words, process_group=0, preexec_fn=_end_with_parent) as self._process:
            code = self._process.wait()
        self._process = None
        return code

    def _report(self, text: str) -> None:
        self.warn(text)
        with contextlib.suppress(InfraError):
            if self.path.is_dir():
                RunFolder.open(self.path).event(text)

    @contextlib.contextmanager
    def _passing_signals_on(self) -> Iterator[None]:
        def handle(number: int, frame: FrameType | None) -> None:
            self._asked.append(number)
            if self._process is None:
                raise Stopped(number)
            self._process.send_signal(number)

        with signals_to(handle):
            yield


def restarts(arguments: argparse.Namespace, path: Path, *, command: str, warn: Callable[[str], None]) -> Restarts:
    """The restarts that the arguments ask for. path: of the run, which is there only for a resume."""
    words = _without(arguments.words, "--restarts")
    if not arguments.resume:
        words = [*_without(words, "--name"), "--name", path.name]
    flags = [f"--{name}" for name in ("json", "plain", "debug") if getattr(arguments, name)]
    if arguments.grace is not None:
        flags += ["--grace", f"{arguments.grace:g}"]
    own = [sys.executable, "-m", "agentgym.cli.main", command]
    return Restarts(path=path, command=own, words=words, flags=flags, at_most=arguments.restarts, warn=warn)


def free_path(path: Path) -> Path:
    """The path, or with a number behind it where that is taken."""
    found, count = path, 1
    while found.exists():
        count += 1
        found = path.with_name(f"{path.name}-{count}")
    return found


def _without(words: Sequence[str], option: str) -> list[str]:
    """The words without an option and its value, in both ways of writing it."""
    kept: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == option:
            rest = rest[1:]
        elif not word.startswith(f"{option}="):
            kept.append(word)
    return kept


def _end_with_parent() -> None:
    """Runs in the child: asks the kernel to stop it when the parent dies, since a killed parent cannot."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
