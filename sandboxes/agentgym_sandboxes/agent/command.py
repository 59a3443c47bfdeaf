"""Turns a child of ours into a command of the session's."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from . import files

NOT_FOUND, NOT_RUNNABLE = 127, 126  # as a shell says it


def run_command(argv: list[str], folder: str, work: str, *, anywhere: bool) -> NoReturn:
    """Become the command, in a folder below the work folder, or anywhere. Its descriptors 0, 1 and 2 are set."""
    code = NOT_RUNNABLE
    try:
        work = files.base_of(folder, work) if anywhere else work
        root = files.open_root(work)
        os.fchdir(files.open_folder(root, files.components(folder, work)))
        for name in ("SIGINT", "SIGPIPE", "SIGXFSZ"):  # our Python ignores them
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        os.execvp(argv[0], argv)
    except files.Refused as error:
        print(error, file=sys.stderr)
    except FileNotFoundError:
        print(f"{argv[0]}: not found", file=sys.stderr)
        code = NOT_FOUND
    except (OSError, ValueError) as error:
        print(f"{argv[0]}: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
    sys.stderr.flush()
    os._exit(code)
