"""Which run folders are the user's own: marked with a key that only this user has. What others made can run code.

~/.local/state/agentgym/key     32 random bytes, made at the first run
RUN/own.mark                    of config.yaml, which names the code of a run
RUN/checkpoints/*/loop.mark     of loop.pickle, the state of a custom training loop
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from agentgym.errors import InfraError
from agentgym.runs.files import write_whole

STATE = Path(".local", "state", "agentgym")  # in the user's home
CONFIG, CONFIG_MARK = "config.yaml", "own.mark"
PICKLE, PICKLE_MARK = "loop.pickle", "loop.mark"
_PATH = re.compile(r".*\.py(:\w*)?|[A-Za-z_][\w.]*:[A-Za-z_][\w.-]*", re.DOTALL)
_NOT_CODE = ("builtin:", "pypi:", "openai:", "hf:")
_COMMANDS = ("command", "args", "argv", "shell", "base_url", "allow_unsafe", "allow_root")


def mark(path: Path, name: str) -> None:
    """Record that this user made a file. Where nothing can be written, nothing is recorded."""
    with contextlib.suppress(OSError, InfraError):
        write_whole(path.with_name(name), _mark(_key(make=True), path).encode())


def is_marked(path: Path, name: str) -> bool:
    """Whether the file is as this user made it."""
    try:
        return hmac.compare_digest(path.with_name(name).read_text(), _mark(_key(make=False), path))
    except (OSError, ValueError, TypeError):
        return False


def mark_run(run: Path) -> None:
    """All of a folder that can run code: it is new, or its user trusts it."""
    mark(run / CONFIG, CONFIG_MARK)
    for path in run.glob(f"checkpoints/*/{PICKLE}"):
        mark(path, PICKLE_MARK)


def is_own(run: Path) -> bool:
    return is_marked(run / CONFIG, CONFIG_MARK)


def code_in(config: Mapping[str, object]) -> list[str]:
    """What a config has run that is not installed, in words: import paths, commands, a server, a sandbox that is none.

    A command or a server may be one of an installed plugin's options.
    """
    found = [f"{key}: {value}" for key, value in _leaves(config, "", set()) if _runs(key, value)]
    return sorted(dict.fromkeys(found))


def _runs(key: str, value: object) -> bool:
    if key.rpartition(".")[2] in _COMMANDS and value:
        return True
    if key == "sandbox.name":
        return value == "unsafe_subprocess"
    return isinstance(value, str) and bool(_PATH.fullmatch(value)) and not value.startswith(_NOT_CODE)


def _leaves(value: object, key: str, above: set[int]) -> Iterator[tuple[str, object]]:
    """Every value with its dotted key, and every key that may be an import path itself, as those of rewards."""
    if isinstance(value, Mapping | list | tuple) and key.rpartition(".")[2] not in _COMMANDS:
        if id(value) in above:  # seen: an alias in YAML
            return
        above.add(id(value))
        for name, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            if isinstance(name, str) and _PATH.fullmatch(name):
                yield key, name
            yield from _leaves(inner, f"{key}.{name}".lstrip("."), above)
    else:
        yield key, value


def _key(*, make: bool) -> bytes:
    """Raises OSError where there is none."""
    for folder in _key_folders():
        path = folder / "key"
        with contextlib.suppress(OSError):
            if make and not path.exists():
                _make_key(path)
            if path.stat().st_uid == os.getuid():
                return path.read_bytes()
    raise FileNotFoundError("no key")


def _key_folders() -> Iterator[Path]:
    """The folders of the key: in the home, and for a user without one."""
    with contextlib.suppress(RuntimeError):
        yield Path.home() / STATE
    yield Path(tempfile.gettempdir()) / f"agentgym-{os.getuid()}"


def _make_key(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_name(f"key.{os.getpid()}")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(os.urandom(32))
    try:
        with contextlib.suppress(FileExistsError):  # another process was first
            os.link(part, path)
    finally:
        part.unlink()


def _mark(key: bytes, path: Path) -> str:
    """The mark of a file in its place: a copy elsewhere has other files beside it, which it may name."""
    return hmac.new(key, bytes(path.resolve()) + b"\0" + path.read_bytes(), hashlib.sha256).hexdigest()
