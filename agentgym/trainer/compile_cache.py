"""Where compiled kernels are kept: torch puts them into a temporary folder, which a new container does not have."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def keep_compiled() -> None:
    """Have torch, from its first compilation on, use the user's cache, where that can be written.

    The variable says another place, and wins.
    """
    if VARIABLE in os.environ:
        return
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentgym" / "inductor"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if os.access(folder, os.W_OK):
        os.environ[VARIABLE] = str(folder)
