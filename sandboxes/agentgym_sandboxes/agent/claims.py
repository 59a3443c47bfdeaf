"""The limit that a failed call says it ran into: untrusted code says so, so it only distinguishes failures."""

from __future__ import annotations

import errno
import json
import re

CLAIMS = {"memory": "oom", "disk": "disk_limit", "file": "disk_limit", "processes": "process_limit"}

_TEXTS = (
    ("memory", rb"\bMemoryError\b|Cannot allocate memory|memory exhausted|std::bad_alloc|[Oo]ut of memory"),
    ("file", rb"File too large|File size limit exceeded"),
    ("disk", rb"No space left on device|Disk quota exceeded"),
    ("processes", rb"[Cc]an(no|')t fork|can't start new thread|[Rr]esource temporarily unavailable"),
)
_MAX_TEXT_BYTES = 4096


def claim(error: BaseException) -> str | None:
    """memory, disk (no room), file (it grew too large), processes, or None. Never raises."""
    try:
        if isinstance(error, MemoryError):
            return "memory"
        if isinstance(error, OSError):
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return "disk"
            if error.errno == errno.EFBIG:
                return "file"
            return "processes" if error.errno == errno.EAGAIN else None
        if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
            return "processes"
    except BaseException:
        pass
    return None


def claim_in(notes: bytes) -> str | None:
    """The claim in what a child said: a line of JSON, if foreign code did not write there too."""
    try:
        claimed = json.loads(notes.partition(b"\n")[0])[0]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return claimed if isinstance(claimed, str) and claimed in CLAIMS else None


def claim_in_text(stderr: bytes) -> str | None:
    """What the end of a failed command's words speaks of."""
    for claimed, pattern in _TEXTS:
        if re.search(pattern, stderr[-_MAX_TEXT_BYTES:]):
            return claimed
    return None
