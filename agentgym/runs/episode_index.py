"""The index of an episode file: for every episode where it lies, and the columns that a table shows.

episodes/step-000012.jsonl.gz is a sequence of gzip members, one for each group, so an episode is one seek and one
small read. Its index beside it, episodes/step-000012.index.json, names the members and the columns, and the length
and last bytes of the file that it describes: an index of another file is not used.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import os
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from agentgym.runs.files import dump_line, write_whole
from agentgym.runs.usage import turns_of, usage_of
from agentgym.types import Json, known_success

log = logging.getLogger(__name__)

FORMAT = 2  # of 1, success was false where it was not known
SUFFIX = ".index.json"
MAX_TEXT = 300  # characters of an error
LEVEL = 3  # of compression
MAX_MEMBER = 2**30  # bytes of text: a file from elsewhere must not fill the memory
Row = dict[str, Any]


class Location(NamedTuple):
    """Where an episode lies: bytes [offset, offset + length) of the file, line `line` of what they hold."""

    offset: int
    length: int
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIndex:
    """mark: of the file that it describes. places: one for each episode, in the file's order. columns: of as many
    values, by the keys of `row_of`; empty for a file without episodes."""

    mark: str
    locations: list[Location]
    columns: dict[str, list[Any]]

    @classmethod
    def of(cls, mark: str, locations: list[Location], rows: Sequence[Row]) -> FileIndex:
        columns = {key: [row[key] for row in rows] for key in (rows or [{}])[0]}
        return cls(mark=mark, locations=locations, columns=columns)


def row_of(record: Mapping[str, Any]) -> Row:
    """What a table shows of one line of an episode file. staleness: of trained groups, in weight versions.

    Of a policy behind a server: prompt_tokens of its first turn, tokens that all answers took, and of their prompts
    asked_tokens, of which cached_tokens; None for other policies. estimated: the server did not count some.
    """
    episode = record["episode"]
    task, turns, calls = episode["task"], episode["turns"], episode.get("tool_calls") or []
    versions: Counter[int] = Counter()
    for turn in turns:
        for version, start, end in turn["versions"]:
            versions[version] += end - start
    error, oldest = episode.get("error"), min(versions, default=None)
    info = episode.get("info") or {}
    served, usage = turns_of(info), usage_of(info)
    return {
        "episode_id": episode["episode_id"],
        "group": record["group_id"],
        "index": record["index"],
        "start_version": record["start_version"],
        "task_id": task["task_id"],
        "split": task.get("split", "train"),
        "difficulty": task.get("difficulty", 0),
        "category": task.get("category", ""),
        "outcome": episode.get("outcome"),
        "success": known_success(info, episode.get("rewards") or {}),
        "stop": episode.get("stop"),
        "reward": episode.get("reward"),
        "rewards": episode.get("rewards") or {},
        "advantage": record.get("advantage"),
        "trained": bool(record.get("trained")),
        "turns": len(served or turns),
        "prompt_tokens": served[0]["prompt_tokens"] if served else len(turns[0]["prompt_ids"]) if turns else 0,
        "tokens": int(usage.get("completion_tokens", sum(versions.values()))),
        "asked_tokens": usage.get("prompt_tokens"),
        "cached_tokens": usage.get("cached_tokens"),
        "estimated": bool(usage.get("turns_estimated")),
        "versions": sorted(versions.items()),
        "oldest": oldest,
        "newest": max(versions, default=None),
        "staleness": record["step"] - 1 - oldest if record.get("trained") and oldest is not None else None,
        "tool_calls": len(calls),
        "tool_errors": sum(1 for call in calls if call.get("error")),
        "branches": max(1, len(episode.get("branches") or ())),
        "retries": episode.get("retries", 0),
        "error": f"{error['source']}: {error['kind']}" if error else "",
        "error_text": str(error["message"])[:MAX_TEXT] if error else "",
        "seconds": (episode.get("timing_s") or {}).get("episode_s"),
    }


KEYS = frozenset(
    ("episode_id", "group", "index", "start_version", "task_id", "split", "difficulty", "category", "outcome",
     "success", "stop", "reward", "rewards", "advantage", "trained", "turns", "prompt_tokens", "tokens", "versions",
     "oldest", "newest", "staleness", "tool_calls", "tool_errors", "branches", "retries", "error", "error_text",
     "seconds", "asked_tokens", "cached_tokens", "estimated")
)  # fmt: skip
"""The columns of an index. One that lacks some was written before they were added, and is made again."""
ADDED: dict[str, None | bool | str] = {"category": "", "asked_tokens": None, "cached_tokens": None, "estimated": False}
"""Columns that an older index lacks, with what they are for episodes with token turns: that one is not made again."""
SHARED = frozenset(("task_id", "split", "category", "outcome", "stop", "error", "error_text"))


def save_episodes(path: Path, records: Sequence[Mapping[str, Json]]) -> None:
    """Write an episode file, a gzip member for each group, and its index.

    The file is whole or absent. Without its index it reads the same, only slower: that one is not waited for.
    """
    data = bytearray()
    locations: list[Location] = []
    rows: list[Row] = []
    for group in _by_group(records):
        text = "".join(dump_line(record) + "\n" for record in group)
        member = gzip.compress(text.encode(), compresslevel=LEVEL, mtime=0)
        locations += [Location(len(data), len(member), line) for line in range(len(group))]
        rows += [row_of(cast("Mapping[str, Any]", record)) for record in group]
        data += member
    write_whole(path, bytes(data) or gzip.compress(b"", mtime=0))
    with contextlib.suppress(OSError):
        write_index(index_path(path), FileIndex.of(mark_of(path), locations, rows))


def index_path(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(".gz").removesuffix(".jsonl") + SUFFIX)


def mark_of(path: Path) -> str:
    """Length and last bytes of a file: the checksum of a gzip member is in them. Raises OSError."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 16))
        return f"{size}-{file.read(16).hex()}"


def write_index(path: Path, index: FileIndex) -> None:
    """Writes the index by one rename, without waiting for the disk. Raises OSError."""
    record = {"format": FORMAT, "mark": index.mark, "places": index.locations, "columns": index.columns}
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(record, separators=(",", ":"), default=repr), encoding="ascii")
    part.replace(path)


def read_index(path: Path, mark: str) -> FileIndex | None:
    """None where there is none, where it is damaged, or where it describes another file than that of the mark."""
    try:
        record = json.loads(path.read_bytes())
        if record["format"] != FORMAT or record["mark"] != mark:
            return None
        columns = record["columns"]
        for key in SHARED & columns.keys():  # equal texts become one: those of a column are few
            columns[key] = [sys.intern(value) if isinstance(value, str) else value for value in columns[key]]
        locations = [Location(*location) for location in record["places"]]
        for key, value in ADDED.items() if any(columns.get("turns", ())) else ():
            columns.setdefault(key, [value] * len(locations))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    whole = all(len(values) == len(locations) for values in columns.values())
    whole = whole and (not locations or columns.keys() >= KEYS)
    return FileIndex(mark=mark, locations=locations, columns=columns) if whole else None


def build_index(path: Path, before: FileIndex | None = None) -> FileIndex:
    """The index of a file that has none, by reading it. What is torn is left out. Raises OSError.

    before: of a plain file when it was shorter: only the lines that were appended since are read.
    """
    mark = mark_of(path)
    start = 0 if before is None else _end_of(before, path)
    locations: list[Location] = []
    rows: list[Row] = []
    for location, record in scan(path, start):
        try:
            rows.append(row_of(record))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("%s: line %d is not an episode and is left out: %r", path, location.line + 1, error)
            continue
        locations.append(location)
    index = FileIndex.of(mark, locations, rows)
    if before is None or not start:
        return index
    columns = {key: [*values, *index.columns.get(key, ())] for key, values in before.columns.items()}
    return FileIndex(mark=mark, locations=before.locations + locations, columns=columns)


def _end_of(before: FileIndex, path: Path) -> int:
    """Where the last episode of a shorter file ends, whose index it is; 0 where the file is not that one grown."""
    size, _, last = before.mark.partition("-")
    if path.suffix == ".gz" or not before.locations:
        return 0
    with path.open("rb") as file:
        file.seek(max(0, int(size) - 16))
        same = file.read(min(16, int(size))).hex() == last
    return before.locations[-1].offset + before.locations[-1].length if same else 0


def scan(path: Path, offset: int = 0) -> Iterator[tuple[Location, Mapping[str, Any]]]:
    """All episodes with their places; a plain file's are its lines, from the offset on. Stops at what is torn.

    Raises OSError.
    """
    with path.open("rb") as file:
        if path.suffix != ".gz":
            file.seek(offset)
            for line in file:
                if line.endswith(b"\n") and (record := _parsed(line)) is not None:
                    yield Location(offset, len(line), 0), record
                offset += len(line)
            return
        data = file.read()
    start = 0
    while start < len(data):
        decoder = zlib.decompressobj(wbits=31)
        try:
            text = decoder.decompress(data[start:], MAX_MEMBER)
        except zlib.error as error:
            log.warning("%s is torn and ends early: %s", path, error)
            return
        length = len(data) - start - len(decoder.unused_data) if decoder.eof else len(data) - start
        for number, line in enumerate(text.split(b"\n")):
            if line and (record := _parsed(line)) is not None:
                yield Location(start, length, number), record
        if not decoder.eof:
            log.warning("%s is torn and ends early", path)
            return
        start += length


def read_at(path: Path, location: Location) -> dict[str, Any]:
    """One episode's line. Raises OSError, or ValueError for a file that has changed."""
    with path.open("rb") as file:
        file.seek(location.offset)
        data = file.read(location.length)
    try:
        text = zlib.decompressobj(wbits=31).decompress(data, MAX_MEMBER) if path.suffix == ".gz" else data
        record = json.loads(text.split(b"\n")[location.line])
    except (zlib.error, IndexError, ValueError) as error:
        raise ValueError(f"{path} has changed, or is damaged: {error}") from None
    if not isinstance(record, dict):
        raise ValueError(f"{path} has changed, or is damaged: a line is not an object")
    return record


def _parsed(line: bytes) -> Mapping[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _by_group(records: Iterable[Mapping[str, Json]]) -> Iterator[list[Mapping[str, Json]]]:
    group: list[Mapping[str, Json]] = []
    for record in records:
        if group and record["group_id"] != group[0]["group_id"]:
            yield group
            group = []
        group.append(record)
    if group:
        yield group
