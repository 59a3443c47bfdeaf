"""A checkpoint's writer that waits, or fails, where a test says so."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemWriter


class Gate:
    """Writers of this gate wait for `open`; `full` has the next one fail as on a full disk."""

    def __init__(self) -> None:
        self.open, self.full = threading.Event(), False

    def writer(self) -> Callable[..., FileSystemWriter]:
        gate = self

        class Gated(FileSystemWriter):
            def write_data(self, *args: Any) -> Any:
                gate.open.wait(60)
                if gate.full:
                    gate.full = False
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return super().write_data(*args)

        return Gated
