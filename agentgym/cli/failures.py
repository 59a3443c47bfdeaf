"""Errors as the user sees them: one message, an exit code, and a traceback that is kept in a file."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agentgym.commands.stopping import Stopped
from agentgym.errors import InfraError, UserError, extra_of, pip_install
from agentgym.held_loop import line_of

FAILED, USER_MISTAKE = 1, 2
PREEMPTED = 75  # "temporary failure; try again" (sysexits.h): saved, to be resumed


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How an error is reported. For the user's mistakes and for interrupts the message is enough."""

    message: str
    exit_code: int
    is_users: bool = False
    is_interrupt: bool = False


def explain(error: BaseException, *, program: bool = False) -> Failure:
    """How the error is reported; for a group, how its members are.

    program: of a user's own program, whose line is named also where it called what refused.
    """
    leaves = list(dict.fromkeys(map(_without_package, _leaves(error))))
    stop = next((leaf for leaf in leaves if isinstance(leaf, KeyboardInterrupt)), None)
    if stop is not None:
        code = stop.exit_code if isinstance(stop, Stopped) else 130
        reason = stop.reason if isinstance(stop, Stopped) else "Ctrl-C"
        return Failure(message=f"interrupted by {reason}", exit_code=code, is_interrupt=True)
    known = [leaf for leaf in leaves if isinstance(leaf, (UserError, InfraError))]
    unknown = [leaf for leaf in leaves if leaf not in known]
    messages = [_with_line(leaf, str(leaf)) if program else str(leaf) for leaf in known]
    messages += [_with_line(leaf, _unexpected(leaf)) for leaf in unknown]
    only_user = bool(known) and not unknown and all(isinstance(leaf, UserError) for leaf in known)
    return Failure(
        message="\n".join(dict.fromkeys(messages)), exit_code=USER_MISTAKE if only_user else FAILED, is_users=only_user
    )


def show(
    error: BaseException, failure: Failure, warn: Callable[[str], None], *, debug: bool, folder: Path | None
) -> None:
    """Print one message, and the traceback with `debug`; otherwise keep it in a file when it may be needed."""
    if debug:
        warn("".join(traceback.format_exception(error)).rstrip())
    warn(f"agentgym: {failure.message}")
    if debug or failure.is_users or failure.is_interrupt:
        return
    path = _keep_traceback(error, folder)
    warn(f"the traceback is in {path}" if path else "run it again with --debug to see the traceback")


def _keep_traceback(error: BaseException, folder: Path | None) -> Path | None:
    """Write the traceback into the folder, or to a temporary file. None when neither is possible."""
    text = "".join(traceback.format_exception(error))
    try:
        if folder is not None:
            path = folder / "traceback.txt"
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
            return path
        with tempfile.NamedTemporaryFile(
            "w", prefix="agentgym-traceback-", suffix=".txt", delete=False, errors="backslashreplace"
        ) as file:
            file.write(text)
        return Path(file.name)
    except OSError:  # a full disk may be why we are here
        return None


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def _without_package(error: BaseException) -> BaseException:
    """Where our own code imports a package that is not installed, the mistake that says which extra has it."""
    module = (getattr(error, "name", None) or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    extra = extra_of(module) if module and not line_of(error) else ""
    return UserError(f"this needs {module}, which is not installed: {pip_install(extra)}") if extra else error


def _with_line(error: BaseException, message: str) -> str:
    """With the line outside this library that raised it, in whatever process, or called what did."""
    line = line_of(error)
    return message if not line or line in message else f"{message}, at {line}"


def _unexpected(error: BaseException) -> str:
    text = str(error) or repr(error)
    return f"{type(error).__name__}: {text}"
