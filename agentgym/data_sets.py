"""Reading data sets with `datasets`: from files, and from the Hugging Face hub or its cache.

What cannot be had is said at once: the hub's own client, which is also asked about a file that does not exist, tries
again and again for half a minute.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from agentgym.errors import UserError, pip_install

READERS: Final = ("json", "csv", "parquet", "text", "arrow")  # of files; any other name is a data set's
_HUB_TIMEOUT_S: Final = 3.0  # for any answer
_OWN: Final = "give a file of your own, or a name that is in the cache"


def load(
    path: str, subset: str | None = None, *, files: Sequence[str] = (), who: str, advice: str = _OWN, **more: Any
) -> Any:
    """What `datasets.load_dataset` gives. path: a reader of `files`, a folder, or a data set's name on the hub.

    who: begins every message. advice: what else can be given where the hub is out of reach. more: for load_dataset.
    Raises UserError for what cannot be read.
    """
    datasets = package(who)
    if path in READERS or Path(path).exists():
        datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # reading a file is told to nobody, and waits for no network
    if why := _out_of_reach(datasets, path, files):
        if path in READERS:
            raise UserError(f"{who}: {why}")
        raise OutOfReach(f"{who}: {why}; {advice}")
    if files:
        more["data_files"] = list(files)
    with readable(f"{who}: {path}{f' {subset}' if subset else ''}{' ' if files else ''}{', '.join(files)}"):
        return datasets.load_dataset(path, subset, **more)


def package(who: str) -> ModuleType:
    """`datasets`, which takes seconds to import. Raises UserError where it is not installed."""
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise UserError(f"{who}: data sets are read by `datasets`: {pip_install('data')}") from error


class OutOfReach(UserError):
    """A data set of a hub that does not answer: not a mistake in the recipe."""


@contextlib.contextmanager
def readable(what: str) -> Iterator[None]:
    """Any error is a UserError: readers and the network raise many kinds."""
    try:
        yield
    except Exception as error:
        raise UserError(f"{what} cannot be read: {type(error).__name__}: {error}") from error


def _out_of_reach(datasets: ModuleType, path: str, files: Sequence[str]) -> str:
    """Why it cannot be read, as far as that can be known at once; else nothing."""
    if path in READERS:
        gone = [one for one in files if "://" not in one and not set("*?[") & set(one) and not Path(one).exists()]
        return f"there is no file {gone[0]}" if gone else ""
    kept, endpoint = Path(datasets.config.HF_DATASETS_CACHE), datasets.config.HF_ENDPOINT
    if Path(path).exists() or (kept / path.replace("/", "___")).exists() or answers(endpoint, _HUB_TIMEOUT_S):
        return ""
    return f"{endpoint} cannot be reached, and the data set {path!r} is not in the cache {kept}"


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
