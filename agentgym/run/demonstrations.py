"""Where demonstrations come from: JSONL files, the saved episodes of runs; and what of them can't be used."""

from __future__ import annotations

import json
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from agentgym.errors import UserError
from agentgym.rl.demonstrations import Demonstration, Written, written
from agentgym.rl.samples import episode_samples
from agentgym.runs.files import open_text
from agentgym.runs.folder import RunFolder
from agentgym.runs.records import SavedEpisode
from agentgym.text.chat import ChatRenderer
from agentgym.types import Episode, Json, Message

ROLES = ("system", "user", "assistant", "tool")
SHOWN_FAULTS = 10


class Unfit(ValueError):
    """Why a row or a conversation can't be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A demonstration. episode: the saved one that it was, whose sampled tokens may be taken as they are."""

    demonstration: Demonstration
    episode: Episode | None = None


@dataclass(slots=True, kw_only=True)
class Collection:
    """What was found. faults: a line for each row or conversation that can't be used, with its place."""

    max_skipped_share: float
    found: list[Found] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Raises UserError, with a report, where too many or all are skipped."""
        total = len(self.found) + len(self.faults)
        if not total:
            raise UserError("\n".join(["there is no conversation to imitate", *self.notes]))
        if self.found and len(self.faults) <= self.max_skipped_share * total:
            return
        shown = self.faults[:SHOWN_FAULTS]
        more = len(self.faults) - len(shown)
        raise UserError(
            f"{len(self.faults)} of {total} conversations can't be used; sft.max_skipped_share allows a share of "
            f"{self.max_skipped_share:g}:\n" + "\n".join([*shown, *([f"and {more} more"] if more else [])])
        )


def read_file(path: str, into: Collection) -> None:
    """The rows of a JSONL file, plain or gzipped. Raises UserError where it can't be read at all."""
    try:
        with open_text(Path(path)) as file:
            lines = list(file)  # `splitlines` would also split at U+2028 within a text
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"sft.data: {path} could not be read: {error}") from None
    before = len(into.found), len(into.faults)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}, row {number}"
        try:
            into.found.append(Found(demonstration=read_row(line, where)))
        except Unfit as fault:
            into.faults.append(f"{where}: {fault}")
    found, faults = len(into.found) - before[0], len(into.faults) - before[1]
    into.notes.append(f"{path}: {found} conversations" + (f", {faults} rows that can't be used" if faults else ""))


def read_row(line: str, where: str) -> Demonstration:
    """Raises Unfit for what is not a conversation."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Unfit(f"it is not JSON: {error}") from None
    if not isinstance(row, Mapping):
        raise Unfit(f"it is a {type(row).__name__}; a row is an object with messages")
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Unfit("messages is missing" if messages is None else "messages is not a list with anything in it")
    tools = row.get("tools") or []
    if not isinstance(tools, list) or not all(_is_schema(one) for one in tools):
        raise Unfit('tools is not a list of {"type": "function", "function": {"name": ...}}')
    read = tuple(_message(one, f"messages[{n}]") for n, one in enumerate(messages))
    return Demonstration(name=where, messages=read, tools=tuple(map(_with_parameters, tools)))


def read_episodes(path: str, min_reward: float, into: Collection) -> None:
    """The episodes of a run's training that earn at least min_reward; held-out tasks are left out, and said.

    Raises UserError where the folder has no episodes of training.
    """
    folder = RunFolder.open(path)
    steps = [(step, False) for step in folder.episode_steps()]
    steps += [(step, True) for step in folder.episode_steps(evaluation=True)]
    if not steps:
        raise UserError(f"sft.episodes: {path} has no saved episodes (logging.save_episodes decides that)")
    chosen = low = held_out = 0
    for saved in _saved(folder, steps):
        episode = saved.episode
        if episode.task.split != "train":
            held_out += 1
        elif episode.reward is None or episode.reward < min_reward or not episode.turns:
            low += 1
        else:
            chosen += 1
            name = f"{path}, step {saved.step}, {episode.episode_id}"
            made = Demonstration(name=name, messages=tuple(episode.messages))
            into.found.append(Found(demonstration=made, episode=episode))
    left_out = f"; {held_out} of held-out tasks are left out" if held_out else ""
    into.notes.append(f"{path}: {chosen} of {chosen + low} episodes earn {min_reward:g} or more{left_out}")


def write_all(collection: Collection, renderer: ChatRenderer, seq_len: int) -> list[tuple[Written, Demonstration]]:
    """All as tokens; what does not fit into seq_len, and what no episode could have, becomes a fault."""
    result: list[tuple[Written, Demonstration]] = []
    fit = []
    for one in collection.found:
        try:
            made = _as_tokens(one, renderer)
            if (longest := max(map(len, made))) > seq_len:
                raise Unfit(f"it has {longest} tokens; trainer.seq_len is {seq_len}")
        except (ValueError, UserError, RecursionError) as fault:
            collection.faults.append(f"{one.demonstration.name}: {fault}")
            continue
        result += [(part, one.demonstration) for part in made]
        fit.append(Found(demonstration=one.demonstration))
    collection.found = fit
    return result


def _as_tokens(found: Found, renderer: ChatRenderer) -> list[Written]:
    """One, or of an episode one for each branch."""
    episode = found.episode
    made = as_sampled(episode, renderer) if episode is not None else None
    if made is not None:
        if not made:
            raise Unfit("all of its turns are masked, so nothing of it is trained")
        return made
    if episode is not None and episode.tool_calls:
        raise Unfit("it has tool calls, and another tokenizer: it can't be written again without its tools")
    if episode is not None and _num_said(episode) != len(episode.turns):
        raise Unfit("a program played it, with another tokenizer: what the policy said is known as tokens alone")
    return [written(found.demonstration, renderer)]


def _num_said(episode: Episode) -> int:
    return sum(message["role"] == "assistant" for message in episode.messages[len(episode.task.prompt) :])


def as_sampled(episode: Episode, renderer: ChatRenderer) -> list[Written] | None:
    """The episode's own tokens, one for each of its branches, if this tokenizer reads them as the text that they were.

    Else None.
    """
    prompt = renderer.tokenizer.decode(episode.turns[0].prompt_ids)
    asked = episode.task.prompt[-1]["content"]
    if asked not in prompt or renderer.tokenizer.encode(prompt) != episode.turns[0].prompt_ids:
        return None
    return [
        Written(
            name=sample.sample_id, token_ids=array("i", sample.token_ids), trained=bytes(map(int, sample.loss_mask))
        )
        for sample in episode_samples(episode, 1.0)
    ]


def _saved(folder: RunFolder, steps: Iterable[tuple[int, bool]]) -> Iterator[SavedEpisode]:
    for step, evaluation in steps:
        yield from folder.read_episodes(step, evaluation=evaluation)


def _message(given: object, where: str) -> Message:
    if not isinstance(given, Mapping):
        raise Unfit(f"{where} is not an object with role and content")
    role, content, calls = given.get("role"), given.get("content"), given.get("tool_calls")
    if role not in ROLES:
        raise Unfit(f"{where}: role is {'missing' if role is None else repr(role)}; allowed are {', '.join(ROLES)}")
    if content is None and calls:
        content = ""
    if not isinstance(content, str):
        what = "missing" if content is None else f"a {type(content).__name__}, not a text"
        raise Unfit(f"{where}: content is {what}")
    message: dict[str, object] = {"role": role, "content": content}
    if calls:
        if role != "assistant" or not isinstance(calls, list):
            raise Unfit(f"{where}: tool_calls is a list, in messages of the assistant only")
        message["tool_calls"] = [_call(one, f"{where}.tool_calls[{n}]") for n, one in enumerate(calls)]
    for key in ("name", "tool_call_id"):
        if isinstance(given.get(key), str):
            message[key] = given[key]
    return cast(Message, message)


def _call(given: object, where: str) -> dict[str, Json]:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise Unfit(f'{where} is not {{"function": {{"name": ..., "arguments": {{...}}}}}}')
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):  # as OpenAI's interface has them
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise Unfit(f"{where}: its arguments are not JSON: {arguments!r:.80}") from None
    if not isinstance(arguments, Mapping):
        raise Unfit(f"{where}: its arguments are a {type(arguments).__name__}, not an object")
    try:
        json.dumps(arguments, allow_nan=False)
    except (ValueError, RecursionError) as error:  # Python reads NaN, and JSON has none
        raise Unfit(f"{where}: its arguments are not JSON: {error}") from None
    call_id = given.get("id") if isinstance(given, Mapping) else ""
    called: dict[str, Json] = {"name": cast(str, function["name"]), "arguments": dict(arguments)}
    return {"type": "function", "id": call_id if isinstance(call_id, str) else "", "function": called}


def _is_schema(given: object) -> bool:
    function = given.get("function") if isinstance(given, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str)


def _with_parameters(schema: Mapping[str, Json]) -> Mapping[str, Json]:
    """The tool as environments' tools are: a function without arguments has `parameters` too."""
    function = cast("Mapping[str, Json]", schema["function"])
    if function.get("parameters") is not None:
        return schema
    return {**schema, "function": {**function, "parameters": {"type": "object", "properties": {}}}}
