"""All trials, category by category."""

from __future__ import annotations

from agentgym_sandboxes.audit import (
    clock,
    descriptors,
    disk,
    floods,
    handed_back,
    interference,
    kernel_keeps,
    memory,
    neighbours,
    network,
    outliving,
    processes,
    session_files,
    session_strain,
    state,
    surface_files,
    surface_kernel,
)
from agentgym_sandboxes.audit.hacks import HACKS
from agentgym_sandboxes.audit.snippet import Trial

SNIPPETS: tuple[Trial, ...] = (
    *processes.SNIPPETS,
    *memory.SNIPPETS,
    *disk.SNIPPETS,
    *descriptors.SNIPPETS,
    *floods.SNIPPETS,
    *clock.SNIPPETS,
    *outliving.SNIPPETS,
    *interference.SNIPPETS,
    *neighbours.SNIPPETS,
    *surface_files.SNIPPETS,
    *surface_kernel.SNIPPETS,
    *kernel_keeps.SNIPPETS,
    *network.SNIPPETS,
    *state.SNIPPETS,
    *handed_back.SNIPPETS,
    *session_files.SCENES,
    *session_strain.SCENES,
)


def all_trials() -> tuple[Trial, ...]:
    """The hostile snippets, then the reward hacks; names are unique."""
    return (*SNIPPETS, *HACKS)
