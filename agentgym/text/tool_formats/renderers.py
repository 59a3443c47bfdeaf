"""Formats of larger families, read by the package `renderers` (extra `renderers`): DeepSeek, GLM, Kimi and harmony."""

from __future__ import annotations

import functools
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from agentgym.errors import UserError, pip_install
from agentgym.text.tool_formats.base import Parsed, ToolFormat, after_thoughts
from agentgym.text.tool_formats.json_calls import MAX_FAULT, Unreadable, dumps, read_json
from agentgym.text.tool_formats.qwen_coder import value_of
from agentgym.tools import MalformedCall, ToolCall
from agentgym.types import Json

_FAULTS: Mapping[str, str] = {
    "invalid_json": "the arguments are not JSON",
    "unclosed_block": "it has no end",
    "missing_name": "it has no name",
    "malformed_structure": "its parts are not where they must be",
    "unknown_tool": "its name cannot be read",
}
_TOKEN = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")


class Characters:
    """A tokenizer of one id per character, and one per token that a renderer asks for.

    What was sampled in other tokens than the markers is broken up before (`ToolFormat.parse_ids`), so a text is enough.
    """

    unk_token_id = None
    name_or_path = ""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}
        self._split = re.compile("(?!)")

    def convert_tokens_to_ids(self, token: str) -> int:
        if token not in self._tokens:
            self._tokens[token] = 0x110000 + len(self._tokens)
            self._split = re.compile("|".join(map(re.escape, self._tokens)))
        return self._tokens[token]

    def encode(self, text: str, **_: object) -> list[int]:
        if _TOKEN.fullmatch(text):
            return [self.convert_tokens_to_ids(text)]
        ids: list[int] = []
        begun = 0
        for token in self._split.finditer(text):
            ids += map(ord, text[begun : token.start()])
            ids.append(self._tokens[token[0]])
            begun = token.end()
        return [*ids, *map(ord, text[begun:])]

    def decode(self, token_ids: Sequence[int] | int, **_: object) -> str:
        if isinstance(token_ids, int):
            token_ids = [token_ids]
        names = [*self._tokens]
        return "".join(chr(i) if i < 0x110000 else names[i - 0x110000] for i in token_ids)


@dataclass(frozen=True)
class _FromRenderers(ToolFormat):
    """renderer: its name in `renderers`. opens: without this text there is no call."""

    renderer: ClassVar[str]
    opens: ClassVar[str]

    def parse(self, text: str) -> Parsed:
        thoughts = after_thoughts(text)
        begins = text.find(self.opens, thoughts)
        if begins < 0:
            return Parsed(text)
        try:
            found = list(self._found(text[thoughts:]))
        except UserError:  # it is not installed
            raise
        except (ValueError, RecursionError, IndexError, KeyError) as error:
            return Parsed("", (MalformedCall(text, f"the tool call cannot be read: {type(error).__name__}"),))
        if not found and self.opens not in self.markers:  # typed in an answer
            return Parsed(text)
        calls = tuple(map(self._call, found)) or (_empty(text[begins:]),)
        return Parsed(text[:begins].strip(), calls)

    def _found(self, text: str) -> Iterator[Any]:
        tokenizer, renderer = _load(self.renderer)
        yield from renderer.parse_response(tokenizer.encode(text), **self._hints(text)).tool_calls

    def _hints(self, text: str) -> dict[str, Any]:
        return {}

    def _call(self, found: Any) -> ToolCall | MalformedCall:
        raw = str(found.raw)
        shown = " ".join(raw.split())[:MAX_FAULT]
        if found.status != "ok":
            return MalformedCall(
                raw, f"a tool call of this kind cannot be read: {_FAULTS[found.status]}; this is {shown}"
            )
        arguments = self._arguments(found.arguments)
        if not isinstance(arguments, Mapping):
            return MalformedCall(raw, f"the arguments of a tool call are one object; this is {shown}")
        try:
            read_json(dumps(arguments))  # no NaN, and not too deep
        except (Unreadable, RecursionError) as why:
            return MalformedCall(raw, f"the arguments of a tool call are JSON: {why}")
        return ToolCall(str(found.name), arguments, str(found.id or ""))

    def _arguments(self, arguments: Json) -> Json:
        return arguments

    @abstractmethod
    def write(self, calls: Sequence[ToolCall], content: str = "") -> str: ...


def _empty(text: str) -> MalformedCall:
    shown = " ".join(text.split())[:MAX_FAULT]
    return MalformedCall(text, f"tool calls begin here, and none can be read: {shown}")


@functools.cache
def _load(name: str) -> tuple[Characters, Any]:
    try:
        from renderers import parsing
        from renderers.deepseek_v3 import DeepSeekV3Renderer
        from renderers.glm45 import GLM45Renderer
        from renderers.kimi_k2 import KimiK2Renderer
    except ImportError as error:
        raise UserError(
            f"the tool format {name!r} is read by a package that is not installed: {pip_install('renderers')}"
        ) from error
    tokenizer = Characters()
    if name == "gpt_oss":  # its renderer would download a vocabulary
        return tokenizer, functools.partial(parsing.parse_gpt_oss, tokenizer)
    classes = {"deepseek_v3": DeepSeekV3Renderer, "glm45": GLM45Renderer, "kimi_k2": KimiK2Renderer}
    return tokenizer, classes[name](tokenizer)


@dataclass(frozen=True)
class DeepSeekV3(_FromRenderers):
    """DeepSeek V3 and R1."""

    renderer = "deepseek_v3"
    opens = "<｜tool▁calls▁begin｜>"
    markers: ClassVar[tuple[str, ...]] = (
        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    )  # fmt: skip

    def write(self, calls: Sequence[ToolCall], content: str = "") -> str:
        begin, end, call_begin, call_end, sep = self.markers
        bodies = [
            f"{call_begin}function{sep}{call.name}\n```json\n{dumps(call.arguments)}\n```{call_end}" for call in calls
        ]
        return content + begin + "\n".join(bodies) + end if calls else content


@dataclass(frozen=True)
class Glm45(_FromRenderers):
    """GLM 4.5 to 4.7. Values have no quotes: they are read as those of `qwen_coder`."""

    renderer = "glm45"
    opens = "<tool_call>"
    markers: ClassVar[tuple[str, ...]] = (
        "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    )  # fmt: skip

    def write(self, calls: Sequence[ToolCall], content: str = "") -> str:
        return "\n".join(filter(None, [content, *map(self._written, calls)]))

    def _written(self, call: ToolCall) -> str:
        pairs = (
            f"<arg_key>{name}</arg_key>\n<arg_value>{value if isinstance(value, str) else dumps(value)}</arg_value>\n"
            for name, value in call.arguments.items()
        )
        return f"<tool_call>{call.name}\n{''.join(pairs)}</tool_call>"

    def _hints(self, text: str) -> dict[str, Any]:
        """Every argument as a text: without types it would take numbers for what may be a text of digits."""
        names = {name.strip() for name in re.findall(r"<tool_call>([^<]*)", text)}
        keys = {key.strip() for key in re.findall(r"<arg_key>(.*?)</arg_key>", text, re.DOTALL)}
        properties = {key: {"type": "string"} for key in keys}
        return {"tools": [{"name": name, "parameters": {"properties": properties}} for name in names]}

    def _arguments(self, arguments: Json) -> Json:
        if not isinstance(arguments, Mapping):
            return arguments
        return {name: value_of(value) if isinstance(value, str) else value for name, value in arguments.items()}


@dataclass(frozen=True)
class KimiK2(_FromRenderers):
    """Kimi K2; a call's id is `functions.NAME:NUMBER`."""

    renderer = "kimi_k2"
    opens = "<|tool_calls_section_begin|>"
    markers: ClassVar[tuple[str, ...]] = (
        "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>",
        "<|tool_call_argument_begin|>",
    )  # fmt: skip

    def write(self, calls: Sequence[ToolCall], content: str = "") -> str:
        begin, end, call_begin, call_end, argument = self.markers
        bodies = (
            f"{call_begin}functions.{call.name}:{n}{argument}{dumps(call.arguments)}{call_end}"
            for n, call in enumerate(calls)
        )
        return f"{content}{begin}{''.join(bodies)}{end}" if calls else content


@dataclass(frozen=True)
class GptOss(_FromRenderers):
    """Harmony, of gpt-oss; one call a turn, which `<|call|>` ends."""

    renderer = "gpt_oss"
    opens = "to=functions."
    markers: ClassVar[tuple[str, ...]] = (
        "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>",
    )  # fmt: skip

    def write(self, calls: Sequence[ToolCall], content: str = "") -> str:
        said = f"<|channel|>analysis<|message|>{content}<|end|><|start|>assistant" if content else ""
        bodies = (
            f" to=functions.{call.name}<|channel|>commentary json<|message|>{dumps(call.arguments)}" for call in calls
        )
        return said + "<|call|><|start|>assistant".join(bodies) if calls else content

    def _found(self, text: str) -> Iterator[Any]:
        tokenizer, parse = _load(self.renderer)
        head = "" if text.startswith("<|start|>") else "<|start|>assistant"
        names = ("start", "end", "message", "channel", "constrain", "call", "return")
        ids = {f"{name}_id": tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in names}
        yield from parse(tokenizer.encode(f"{head}{text}<|call|>"), **ids).tool_calls
