"""All reward hacks of the suite: each tries to be graded as right without solving its problem."""

from __future__ import annotations

from agentgym_sandboxes.audit import hacks_exits, hacks_objects, hacks_output, hacks_patches, hacks_spying
from agentgym_sandboxes.audit.hacks_trial import Hack

HACKS: tuple[Hack, ...] = (
    *hacks_exits.HACKS,
    *hacks_output.HACKS,
    *hacks_objects.HACKS,
    *hacks_patches.HACKS,
    *hacks_spying.HACKS,
)
