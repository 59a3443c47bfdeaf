"""Whether the Hugging Face hub answers: its own client asks again and again before it says that it does not."""

from __future__ import annotations

import contextlib
import threading
import urllib.error
import urllib.request


def answers(url: str, timeout_s: float) -> bool:
    """Whether a server says anything at all, through the proxies of the environment's variables."""
    said = threading.Event()

    def ask() -> None:
        with contextlib.suppress(OSError):
            try:
                urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=timeout_s).close()
            except urllib.error.HTTPError as error:  # an answer, too
                error.close()
            said.set()
        done.set()

    done = threading.Event()
    threading.Thread(target=ask, daemon=True).start()  # looking up a name has no limit of its own
    done.wait(timeout_s)
    return said.is_set()
