"""What scores episodes in the child processes of plain reward functions: one that hangs can be killed.

A request is a pickled episode, which every function scores. Answers are JSON, one `Answer` for each score, so that
nothing that a reward made is unpickled by the parent.
"""

from __future__ import annotations

import base64
import io
import json
import numbers
import pickle
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentgym.held_loop import line_of
from agentgym.import_path import load_file
from agentgym.killable.child import Handler, send_frame
from agentgym.plugin_errors import origin_of
from agentgym.rewards import RewardFunction, Score
from agentgym.types import Episode
from agentgym.utf8 import clean_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one function gave: a score, or one for each turn, or how it failed."""

    score: float | list[float] | None = None
    error_kind: str = ""
    error: str = ""

    def __post_init__(self) -> None:
        clean_fields(self, "error_kind", "error")

    def to_json(self) -> bytes:
        return json.dumps([self.score, self.error_kind, self.error]).encode()

    @classmethod
    def from_json(cls, body: bytes) -> Answer:
        score, error_kind, error = json.loads(body)
        return cls(score=score, error_kind=error_kind, error=error)


def as_scores(value: object) -> Score | list[float]:
    """What a reward function returned: `as_score`, or of a sequence the scores of the turns."""
    return [*map(float, value)] if isinstance(value, list | tuple) else as_score(value)


def as_score(value: object) -> Score:
    """What a reward function returned, as a float or None. Anything else is a TypeError."""
    if value is None:
        return None
    if isinstance(value, numbers.Real):  # numpy's numbers are among them
        return float(value)
    raise TypeError(f"it returned {value!r:.80} of type {type(value).__name__}; return a float or None")


def failure(error: BaseException, function: object = None) -> Answer:
    """A raised error, with the place that raised it, and the distribution of that code."""
    found = (line_of(error), origin_of(function))
    shown = f" ({'; '.join(filter(None, found))})" if any(found) else ""
    return Answer(error_kind=type(error).__name__, error=f"{error!s:.500}{shown}")


def scores(given: Mapping[str, Any]) -> Handler:
    """The handler of a child.

    functions: in `given`, each pickled separately, so that one that cannot be imported breaks no other. files: the
    modules that were loaded from a file's path, by their names.
    """
    functions = [_import(base64.b64decode(function), given["files"]) for function in given["functions"]]

    def handle(channel: socket.socket, body: bytes) -> None:
        episode: Episode = pickle.loads(body)
        for function in functions:
            answer = function if isinstance(function, Answer) else _call(function, episode)
            send_frame(channel, answer.to_json())

    return handle


def load_pickled(pickled: bytes, files: Mapping[str, str]) -> object:
    """What was pickled in another process of this library. files: see `import_path.loaded_files`, of that process."""
    return _Unpickler(pickled, files).load()


class _Unpickler(pickle.Unpickler):
    """Runs the file of a module that has no name to import it by."""

    def __init__(self, pickled: bytes, files: Mapping[str, str]) -> None:
        super().__init__(io.BytesIO(pickled))
        self._files = files

    def find_class(self, module_name: str, global_name: str) -> Any:
        if module_name in self._files:
            load_file(self._files[module_name])
        return super().find_class(module_name, global_name)


def _import(pickled: bytes, files: dict[str, str]) -> RewardFunction | Answer:
    try:
        function: RewardFunction = _Unpickler(pickled, files).load()
        return function
    except Exception as error:  # plugin code: anything may come
        return failure(error)


def _call(function: RewardFunction, episode: Episode) -> Answer:
    try:
        return Answer(score=as_scores(function(episode)))
    except (Exception, SystemExit) as error:  # plugin code: anything may come
        return failure(error, function)
