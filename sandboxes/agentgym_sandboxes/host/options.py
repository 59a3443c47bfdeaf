"""The ranges of the options that several sandboxes have."""

from __future__ import annotations

import math
from collections.abc import Mapping

from agentgym.errors import UserError

MORE_THAN_0 = math.ulp(0.0)
POSITIVE = (MORE_THAN_0, math.inf)
BOXES = {"slots": (0, 256), "spares": (0, 256), "lease_timeout_s": POSITIVE, "start_timeout_s": POSITIVE}


def check_ranges(config: object, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Raises UserError for a field outside of its range; None is in any."""
    for name, (least, most) in ranges.items():
        value = getattr(config, name)
        if value is not None and not least <= value <= most:
            if least == MORE_THAN_0:
                allowed = "more than 0"
            else:
                allowed = f"at least {least}" if most == math.inf else f"{least} to {most}"
            raise UserError(f"{name} is {value:.12g}; it must be {allowed}")
