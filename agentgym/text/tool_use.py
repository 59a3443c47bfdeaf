"""What a chat template does with tools, found out by rendering a known tool, a known call and known results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal

from agentgym.components import SEAMS, find
from agentgym.errors import UserError, pip_install
from agentgym.plugin_errors import PluginError
from agentgym.text.tokenizer import Tokenizer
from agentgym.text.tool_formats.base import ToolFormat
from agentgym.text.tool_formats.hermes import Hermes
from agentgym.text.tool_formats.json_calls import dumps
from agentgym.tools import MalformedCall, ToolCall
from agentgym.types import Message

Written = Literal["object", "text", "content"]
"""How a template takes the calls of a turn: arguments as an object, as JSON text, or only as part of the content."""

_USER: Message = {"role": "user", "content": "."}
PROBES = (
    ToolCall("zq_look_up", {"word": 'a "b" é', "count": 3}, "call00001"),
    ToolCall("zq_find", {"place": "[north]", "deep": {"list": [1, {"x": "y"}]}}, "call00002"),
)
_SCHEMAS = tuple(
    {
        "type": "function",
        "function": {
            "name": call.name,
            "description": "Looks up.",
            "parameters": {"type": "object", "properties": {name: {"type": "string"} for name in call.arguments}},
        },
    }
    for call in PROBES
)
_TAG = re.compile(r"</?[A-Za-z_]{3,40}>|\[/?[A-Z_]{3,40}\]")


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How tools are used with one template.

    native: the template writes the tools; else they are told in the system message. results_as: role of a result.
    marks: texts that no message may contain, because they stand around calls or results.
    """

    format: ToolFormat
    native: bool
    calls_as: Written
    results_as: Literal["tool", "user"]
    marks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one format made of the calls that a template writes. read: of one call, and of two, as far as it came.

    proved: it reads the same calls. writes_alike: it also writes them so. error: what it raised.
    """

    format: ToolFormat
    read: tuple[tuple[ToolCall | MalformedCall, ...], ...]
    proved: bool
    writes_alike: bool = False
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """How a template writes known calls, and which formats read them back.

    written: one call, and two where it takes two; one empty text where it drops calls.
    """

    takes_tools: bool
    calls_as: Written
    written: tuple[str, ...]
    readings: tuple[Reading, ...]

    @property
    def chosen(self) -> ToolFormat | None:
        """The first format that reads the calls and writes them alike, or else the first that reads them."""
        readers = sorted((one for one in self.readings if one.proved), key=lambda one: not one.writes_alike)
        return readers[0].format if readers else None


def prove(tokenizer: Tokenizer, formats: Iterable[ToolFormat]) -> Proof:
    """Have the template write known calls, and each format read them."""
    takes_tools = _takes_tools(tokenizer)
    calls_as, written = _written_call(tokenizer, takes_tools=takes_tools)
    readings = tuple(_reading(tokenizer, one, written) for one in formats)
    return Proof(takes_tools=takes_tools, calls_as=calls_as, written=tuple(written), readings=readings)


def find_tool_use(
    tokenizer: Tokenizer, given: ToolFormat | None = None, others: Callable[[], Sequence[ToolFormat]] = tuple
) -> ToolUse:
    """Choose the format by proof: the template writes a known call, and the format reads the same call.

    given: a format chosen by the user. One that the template does not write is taught in the system message. others:
    the formats of plugins, which are tried after ours. Raises UserError where the template takes tools and writes
    calls in no known format.
    """
    proof = prove(tokenizer, [given] if given is not None else known_formats())
    if proof.chosen is None and given is None and proof.takes_tools:
        proof = replace(proof, readings=prove(tokenizer, others()).readings)
    takes_tools, calls_as, written, proved = proof.takes_tools, proof.calls_as, proof.written, proof.chosen
    for reading in proof.readings:
        if given is not None and reading.error is not None and not isinstance(reading.error, UserError):
            raise reading.error
    if proved is None and given is None and takes_tools:
        names = ", ".join(SEAMS["tool_formats"].builtin)
        more = ". DeepSeek's, GLM's, Kimi's and harmony's formats need one more package: " + pip_install("renderers")
        raise UserError(
            "the chat template takes tools, but no known format reads back the call that it writes: asked for "
            f"{PROBES[0].name} with {dumps(PROBES[0].arguments)}, it writes {written[0][-200:]!r}. Set "
            f"model.tool_format to one of {names}, or to the import path of a ToolFormat; it is then taught in the "
            f"system message{more if find_spec('renderers') is None else ''}"
        )
    chosen = proved or given or Hermes()
    use = ToolUse(
        format=chosen,
        native=takes_tools and proved is not None,
        calls_as=calls_as if proved else "content",
        results_as="tool",
        marks=chosen.markers,
    )
    results_as, around = _results(tokenizer, use)
    return replace(use, results_as=results_as, marks=tuple(sorted({*chosen.markers, *_TAG.findall(around)})))


def call_message(calls: Sequence[ToolCall], content: str, use: ToolUse) -> Message:
    """A turn that calls, as this template takes it."""
    if use.calls_as == "content":
        return {"role": "assistant", "content": use.format.write(calls, content)}
    return calling_message(calls, content, use.calls_as)


def calling_message(calls: Sequence[ToolCall], content: str, calls_as: Literal["object", "text"]) -> Message:
    written: list[Mapping[str, Any]] = [
        {
            "type": "function",
            "id": call.call_id,
            "function": {
                "name": call.name,
                "arguments": dict(call.arguments) if calls_as == "object" else dumps(call.arguments),
            },
        }
        for call in calls
    ]
    return {"role": "assistant", "content": content, "tool_calls": written}


def result_messages(messages: Sequence[Message], results_as: Literal["tool", "user"]) -> list[Message]:
    """The results of a turn's calls as this template takes them; as a user's, they are one message."""
    if results_as == "tool":
        return list(messages)
    texts = [f"<tool_response>\n{m['content']}\n</tool_response>" for m in messages if m["role"] == "tool"]
    rest = [message for message in messages if message["role"] != "tool"]
    if texts and rest and rest[0]["role"] == "user":  # many of these templates take no two messages of a user
        texts.append(f"\n{rest.pop(0)['content']}")
    return [*([Message(role="user", content="\n".join(texts))] if texts else []), *rest]


@cache
def known_formats() -> tuple[ToolFormat, ...]:
    """Ours, in the order in which they are tried."""
    return tuple(find("tool_formats", name)() for name in SEAMS["tool_formats"].builtin)


def _takes_tools(tokenizer: Tokenizer) -> bool:
    """Many templates drop tools without a word."""
    return PROBES[0].name in (_rendered(tokenizer, [_USER], tools=_SCHEMAS) or "")


def _written_call(tokenizer: Tokenizer, *, takes_tools: bool) -> tuple[Written, list[str]]:
    """How the template writes one call, and two if it takes two; nothing where it drops them."""
    tools = _SCHEMAS if takes_tools else None
    before = _rendered(tokenizer, [_USER], tools=tools, generation_prompt=True) or ""
    ways: tuple[Literal["object", "text"], ...] = ("object", "text")
    texts: list[str] = []
    for calls_as in ways:
        texts = []
        for calls in (PROBES[:1], PROBES):
            talk = [_USER, calling_message(calls, "", calls_as)]
            whole = _rendered(tokenizer, talk, tools=tools)
            if whole and calls[-1].name in whole.rpartition(_USER["content"])[2]:
                texts.append(_agents_part(tokenizer, before, whole))
        if texts:
            return calls_as, texts
    return "content", [""]


def _agents_part(tokenizer: Tokenizer, before: str, whole: str) -> str:
    """What follows the prompt, without the token that ends the turn; a tag is not cut in its middle."""
    same = next(
        (n for n, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b), min(len(before), len(whole))
    )
    for begin, end in ("<>", "[]"):
        if whole.rfind(begin, 0, same) > whole.rfind(end, 0, same):
            same = whole.rfind(begin, 0, same)
    text = whole[same:].rstrip()
    ends = [token for token in tokenizer.special_tokens if text.endswith(token)]
    return text.removesuffix(max(ends, key=len, default=""))


def _reading(tokenizer: Tokenizer, tool_format: ToolFormat, written: Sequence[str]) -> Reading:
    """Whether the format reads what the template wrote, in the order of the calls."""
    found: list[tuple[ToolCall | MalformedCall, ...]] = []
    proved = bool(written[0])
    try:
        for text, calls in zip(filter(None, written), (PROBES[:1], PROBES), strict=False):
            found.append(tool_format.parse_ids(tokenizer.encode(text), tokenizer).calls)
            proved = proved and len(found[-1]) == len(calls) and all(map(is_same_call, found[-1], calls))
        alike = proved and _writes_as(tool_format, written)
    except (UserError, PluginError) as error:  # an extra that is not installed; a plugin's fault
        return Reading(format=tool_format, read=tuple(found), proved=False, error=error)
    return Reading(format=tool_format, read=tuple(found), proved=proved, writes_alike=alike)


def _writes_as(tool_format: ToolFormat, written: Sequence[str]) -> bool:
    """Whether it also writes as the template does, white space apart; Mistral's two forms read each other."""
    ours = (tool_format.write(calls) for calls in (PROBES[:1], PROBES))
    return all("".join(mine.split()) == "".join(its.split()) for mine, its in zip(ours, written, strict=False))


def is_same_call(read: ToolCall | MalformedCall, call: ToolCall) -> bool:
    """Formats without quotes give texts for numbers; the schema's types turn them into numbers later."""
    if not isinstance(read, ToolCall) or read.name != call.name or read.arguments.keys() != call.arguments.keys():
        return False
    pairs = [(read.arguments[name], value) for name, value in call.arguments.items()]
    return all(found == value or found == _text(value) for found, value in pairs)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _results(tokenizer: Tokenizer, use: ToolUse) -> tuple[Literal["tool", "user"], str]:
    """The role in which the template takes results, and what it writes around them."""
    called = call_message(PROBES[:1], "", use)
    result: Message = {"role": "tool", "content": "zqresult0", "name": PROBES[0].name, "tool_call_id": "call00001"}
    before = _rendered(tokenizer, [_USER, called]) or ""
    second: Message = {**result, "content": "zqresult1"}
    for results in ([result, second], [result]):
        whole = _rendered(tokenizer, [_USER, called, *results], generation_prompt=True)
        as_user = [Message(role="user", content=message["content"]) for message in results]
        if whole == _rendered(tokenizer, [_USER, called, *as_user], generation_prompt=True):
            break  # nothing says that it is a result
        if whole and all(message["content"] in whole for message in results):
            return "tool", whole[len(before) :] if whole.startswith(before) else whole.rpartition(PROBES[0].name)[2]
    return "user", "<tool_response></tool_response>"


def _rendered(
    tokenizer: Tokenizer, messages: Sequence[Message], *, tools: Any = None, generation_prompt: bool = False
) -> str | None:
    """None where the template does not take the messages."""
    try:
        return render(tokenizer, messages, tools, generation_prompt=generation_prompt)
    except UserError:
        return None


def render(tokenizer: Tokenizer, messages: Sequence[Message], tools: Any, *, generation_prompt: bool) -> str:
    """Renders with tools, if there are any."""
    if tools is None:
        return tokenizer.render(messages, generation_prompt=generation_prompt)
    return tokenizer.render(messages, generation_prompt=generation_prompt, tools=tools)
