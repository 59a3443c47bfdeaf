"""Answers on disk: an equal request at an equal seed is not sent, and not paid, twice."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from agentgym.policies.outside.answers import ChatRequest
from agentgym.runs.files import write_whole, writing
from agentgym.types import Json

FORMAT = 1


class Known(NamedTuple):
    """An answer that was kept. by: the evaluation that paid for it."""

    body: Json
    by: str


@dataclass(frozen=True, slots=True)
class AnswerCache:
    """folder: made when an answer is kept; None keeps nothing. url: of the server. by: the evaluation that plays."""

    folder: Path | None
    url: str
    by: str = ""

    def find(self, request: ChatRequest) -> Known | None:
        """What cannot be read is not known."""
        if self.folder is None:
            return None
        try:
            kept = json.loads(self._file(self.folder, request).read_text(encoding="utf-8"))
            return Known(kept["body"], kept["by"]) if kept["format"] == FORMAT else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, request: ChatRequest, body: Json) -> None:
        if self.folder is None:
            return
        kept = {"format": FORMAT, "by": self.by, "body": body}
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self._file(self.folder, request), json.dumps(kept).encode())

    def _file(self, folder: Path, request: ChatRequest) -> Path:
        """The seed counts also where the server does not take it: samples of a task are different draws."""
        text = json.dumps([self.url, request.body()], sort_keys=True)
        name = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        return folder / name[:2] / f"{name}.json"
