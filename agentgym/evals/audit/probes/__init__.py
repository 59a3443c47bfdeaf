"""The probes: ways to be rewarded without a right answer, one module each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from agentgym.evals.audit.probes import (
    candidates,
    early_exit,
    echo,
    empty,
    forged,
    format_spam,
    garbage,
    huge,
    junk_calls,
    lookalikes,
    not_numbers,
    usual,
    wrong,
)
from agentgym.evals.audit.probes.attempt import Probe

PROBES: Mapping[str, Probe] = {
    name: cast(Probe, module)
    for name, module in {
        "wrong": wrong,
        "usual": usual,
        "empty": empty,
        "garbage": garbage,
        "huge": huge,
        "candidates": candidates,
        "echo": echo,
        "format_spam": format_spam,
        "forged": forged,
        "not_numbers": not_numbers,
        "lookalikes": lookalikes,
        "early_exit": early_exit,
        "junk_calls": junk_calls,
    }.items()
}
