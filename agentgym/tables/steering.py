"""What was asked of a run, and whether it can be asked for more."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from agentgym.errors import InfraError, UserError
from agentgym.runs.changes import read_changes
from agentgym.runs.folder import RunStatus
from agentgym.runs.steering import Steering
from agentgym.tables.changeable import changeable_json, checked
from agentgym.tables.problems import Problem
from agentgym.tables.run import Run

SHOWN = 50


def steering(run: Run, *, able: bool) -> dict[str, Any]:
    """able: whether this server may steer at all. settings: those that may change, for a form."""
    reason = _why_not(run) if able else "this view only reads"
    requests = [asdict(one) for one in Steering(run.path).read()]
    changes = read_changes(run.path)
    return {
        "able": not reason,
        "why_not": reason,
        "requests": requests[-SHOWN:],
        "settings": [] if reason else changeable_json(run.config(), changes),
        "changes": [asdict(one) for one in changes],
    }


def ask(run: Run, action: str, setting: str = "", value: object = None) -> dict[str, Any]:
    """Raises Problem for what can't be asked, with what can, and for a run that nothing can be asked of.

    setting, value: of the action `set`.
    """
    if reason := _why_not(run):
        raise Problem("conflict", f"{run.location.name}: {reason}")
    try:
        if action == "set":
            Steering(run.path).ask(action, setting, checked(setting, value))
        else:
            Steering(run.path).ask(action)
    except UserError as error:
        raise Problem("invalid", str(error)) from None
    except InfraError as error:
        raise Problem("broken", str(error)) from None
    return steering(run, able=True)


def _why_not(run: Run) -> str:
    if run.kind != "train":
        return "only training runs can be steered"
    status = run.status()[0]
    if status != RunStatus.RUNNING.value:
        return f"the run is {status}, not running"
    if not os.access(run.path, os.W_OK):
        return "its folder can't be written"
    return ""
