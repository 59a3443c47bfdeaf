"""All trials, category by category."""

from __future__ import annotations

from agentgym_sandboxes.audit import task_profile
from agentgym_sandboxes.audit.hacks import changing, exits, objects, output, patches, spying
from agentgym_sandboxes.audit.hacks.hack import Hack
from agentgym_sandboxes.audit.programs import (
    clock,
    descriptors,
    disk,
    floods,
    handed_back,
    interference,
    kernel_state,
    memory,
    neighbours,
    network,
    outliving,
    processes,
    session_files,
    session_load,
    state,
    surface_files,
    surface_kernel,
)
from agentgym_sandboxes.audit.trial import Trial

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
    *kernel_state.SNIPPETS,
    *network.SNIPPETS,
    *state.SNIPPETS,
    *handed_back.SNIPPETS,
    *session_files.SCENES,
    *session_load.SCENES,
)
HACKS: tuple[Hack, ...] = (*exits.HACKS, *output.HACKS, *objects.HACKS, *changing.HACKS, *patches.HACKS, *spying.HACKS)


def all_trials() -> tuple[Trial, ...]:
    """The hostile programs, those of them that attack a task's container, then the reward hacks; names are unique."""
    return (*SNIPPETS, *task_profile.TRIALS, *HACKS)
