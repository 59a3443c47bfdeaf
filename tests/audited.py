"""The audit of a run that this process made itself, whose other tests have containers of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym.runs import audit
from agentgym.runs.audit_files import Audit


def audited(path: Path) -> Audit:
    """What `audit` finds; it asks no engine for containers, as it finds none."""
    with pytest.MonkeyPatch.context() as without_engine:
        without_engine.setenv("PATH", "")
        return audit.audit(path)
