"""An actor whose start takes very long and answers nothing meanwhile; other processes import it."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from agentgym.actors.actor import ServiceActor


class SlowStart(ServiceActor):
    """Starts a process, writes its number into a file, and holds up its own event loop, as an engine does."""

    def __init__(self, file: Path) -> None:
        self._file = file

    async def on_start(self) -> None:
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        part = self._file.with_suffix(".part")
        part.write_text(str(child.pid))
        part.rename(self._file)
        time.sleep(600)
