"""One run as the page reads it: its files, each read again only when it has changed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentgym.errors import UserError
from agentgym.models.resolve import TINY
from agentgym.models.tiny import policy_path
from agentgym.policies.outside.prices import Prices, prices_of
from agentgym.runs.decoder import Decode, find_decoder
from agentgym.runs.files import read_json
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.runs.liveness import last_change
from agentgym.runs.metrics import MetricsLog
from agentgym.tables.episode_table import Tables
from agentgym.tables.problems import Problem
from agentgym.tables.roots import Root, RunLocation, inside
from agentgym.yaml import read_yaml, value_at

MAX_JSON = 64 * 2**20


class Run:
    """A run in one of the folders that were given. cache: for indexes of its episodes, outside of it."""

    def __init__(self, location: RunLocation, cache: Path | None) -> None:
        self.location = location
        self.log = MetricsLog(location.path / "metrics.jsonl")
        self.episodes = Tables(location.path, cache, self.prices)
        self._kept: dict[str, tuple[tuple[int, ...], Any]] = {}
        self._lock = threading.RLock()
        self._texts: dict[int, str] = {}
        self._decoder: Decode | None = None

    @classmethod
    def at(cls, path: Path) -> Run:
        """The run in a folder, for a command that reads it once."""
        whole = path.resolve()
        return cls(RunLocation(root=Root(key="", path=whole.parent, only=whole.name), name=whole.name), None)

    @property
    def path(self) -> Path:
        return self.location.path

    @property
    def folder(self) -> RunFolder:
        return self.location.folder

    def config(self) -> dict[str, Any]:
        """Empty for a run that wrote none yet."""
        return self._read("config.yaml", read_yaml)

    def json(self, name: str) -> dict[str, Any]:
        """An object of one of the run's files, `evals/step-000020.json` for example; empty without the file."""
        return self._read(name, read_json)

    def kept(self, name: str, stamp: tuple[int, ...], make: Callable[[], Any]) -> Any:
        """What `make` returned for this stamp: it is made again when the stamp is another."""
        with self._lock:
            if name not in self._kept or self._kept[name][0] != stamp:
                self._kept[name] = stamp, make()
            return self._kept[name][1]

    def field(self, key: str, default: Any = None) -> Any:
        """A field of the config by its dotted key."""
        value = value_at(self.config(), key)
        return default if value is None else value

    def prices(self) -> Prices | None:
        """Of the tokens of a policy behind a server, as of now. Raises Problem for a file of prices that is broken."""
        try:
            return prices_of(self.config(), self.path)
        except UserError as error:
            raise Problem("broken", str(error)) from None

    @property
    def kind(self) -> str:
        """train, sft or eval."""
        config = self.config()
        if "sft" in config:
            return "sft"
        if any((self.path / name).exists() for name in ("metrics.jsonl", "checkpoints", "state.json")):
            return "train"
        is_eval = (self.path / "evals").is_dir() or self.location.root.path.name.startswith("evals")
        return "eval" if is_eval else "train"

    def status(self) -> tuple[str, str, float | None]:
        """Status, its reason, and when the run last did something."""
        try:
            found = self.folder.status()
        except UserError as error:
            return RunStatus.LOST.value, str(error), None
        return found.status.value, found.reason, last_change(found, self.log.read(), self.path / "logs") or None

    def texts(self, ids: Any) -> list[str] | None:
        """The text of each token; None where no tokenizer is known."""
        with self._lock:
            decode = self._decoder = self._decoder or find_decoder(self.path, self._model_folder())
            if decode is None:
                return None
            for one in set(ids) - self._texts.keys():
                self._texts[one] = decode(one)
            return [self._texts[one] for one in ids]

    def _model_folder(self) -> str:
        path = str(self.field("model.path", ""))
        return str(policy_path()) if path == TINY else str(location) if (location := self._local(path)) else ""

    @staticmethod
    def _local(path: str) -> Path | None:
        folder = Path(path)
        try:
            return next((one for one in (folder, folder / "hf") if (one / "tokenizer.json").is_file()), None)
        except (OSError, ValueError):
            return None

    def _read(self, name: str, read: Callable[[Path], Any]) -> dict[str, Any]:
        path = self.path.joinpath(*name.split("/"))
        parent = self.path if "/" not in name else inside(self.path, name.split("/")[0])
        if parent is None or inside(parent, path.name) is None:
            return {}
        try:
            stat = path.stat()
        except OSError:
            return {}
        if stat.st_size > MAX_JSON:
            return {}

        def load() -> dict[str, Any]:
            try:
                found = read(path)
            except (UserError, OSError, json.JSONDecodeError):
                return {}
            return found if isinstance(found, dict) else {}

        found: dict[str, Any] = self.kept(f"file {name}", (stat.st_ino, stat.st_size, stat.st_mtime_ns), load)
        return found
