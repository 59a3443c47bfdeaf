"""Chat messages to token ids, such that a conversation's ids only ever grow at their end.

What the policy sampled is never rendered or tokenized again. Only two texts come from the template: the
opening prompt, and the text between the end of an agent's turn and the start of its next one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import cached_property, partial
from itertools import count, groupby
from typing import Any

from agentgym.errors import UserError
from agentgym.text.marks import Marks
from agentgym.text.roles import AGENT, USER, Roles
from agentgym.text.template_cache import Frames, Remembered
from agentgym.text.tokenizer import TEMPLATE_ADVICE, Tokenizer
from agentgym.text.tool_formats.base import Parsed, ToolFormat
from agentgym.text.tool_text import INSTRUCTION, tools_text, with_tools
from agentgym.text.tool_use import (
    ToolUse,
    call_message,
    calling_message,
    find_tool_use,
    is_same_call,
    render,
    result_messages,
)
from agentgym.tools import Schema, ToolCall
from agentgym.types import Message, Role

_REMEMBERED_CHARS = 1000  # a reply that is longer seldom comes twice
_THOUGHTS = ("<think>", "</think>")
_MAX_TOOLS_TEXTS = 1024

Schemas = Sequence[Schema]


@dataclass(frozen=True, slots=True)
class _ToolsText:
    """Tools as they enter a prompt: for a template that writes them, or as a text. number: of its own."""

    number: int
    native: Any
    text: str


class ChatRenderer:
    """Renders with a tokenizer's own template. Whether it can be continued, `continuation.check_template` says."""

    today = staticmethod(date.today)

    def __init__(
        self,
        tokenizer: Tokenizer,
        tool_format: ToolFormat | None = None,
        tool_instruction: str = "",
        other_formats: Callable[[], Sequence[ToolFormat]] = tuple,
    ) -> None:
        """tool_format: None takes the one that the template is proved to write, of ours and of `other_formats`.

        tool_instruction: how tools are told to a policy whose template drops them; empty is `tool_text.INSTRUCTION`.
        """
        self.tokenizer = tokenizer
        self.turn_end, self.stop = _turn_end(tokenizer)
        self.end_ids = tuple(sorted({*tokenizer.end_ids, *tokenizer.encode(self.stop)}))
        self._roles = Roles(tokenizer)
        self._tool_format, self._tool_instruction = tool_format, tool_instruction or INSTRUCTION
        self._other_formats = other_formats
        self.call_stop = self.stop  # of a turn that calls: harmony, Llama and GLM end it otherwise
        self._marks_of = _marks_of(tokenizer, ())
        # by id, which the schemas themselves keep from reuse
        self._tools_texts: dict[int, tuple[Schemas, _ToolsText]] = {}
        self._tools_texts_by_json: dict[str, _ToolsText] = {}
        self._numbers = count()
        self._day = date.min
        self._openings: Remembered[Frames] = Remembered(64)  # by the number of the tools
        self._prompts: Remembered[tuple[int, ...]] = Remembered(256)
        self._replies: Remembered[tuple[int, ...]] = Remembered(4096)
        self._continuations: Remembered[tuple[Frames, str, int]] = Remembered(64)

    @cached_property
    def tool_use(self) -> ToolUse:
        """What the template does with tools. Raises UserError where no format of calls is proved."""
        use = find_tool_use(self.tokenizer, self._tool_format, self._other_formats)
        self._marks_of = _marks_of(self.tokenizer, use.marks)
        self.call_stop = self._call_end(use) or self.stop
        self.end_ids = tuple(sorted({*self.end_ids, *self.tokenizer.encode(self.call_stop)}))
        return use

    def prompt(self, messages: Sequence[Message], tools: Schemas | None = None) -> tuple[int, ...]:
        """The ids of an opening conversation, up to the start of the agent's turn."""
        if any("tool_calls" in message for message in messages):
            return self.tokenizer.encode(self.prompt_text(messages, tools))
        known = self._known(tools).number if tools else None
        key = (known, *((m["role"], m["content"], m.get("name"), m.get("tool_call_id")) for m in messages))
        ids = self._prompts.get(key)  # the episodes of a group have one prompt
        return ids or self._prompts.keep(key, self.tokenizer.encode(self.prompt_text(messages, tools)))

    def prompt_text(self, messages: Sequence[Message], tools: Schemas | None = None) -> str:
        """What `prompt` encodes."""
        known = self._known(tools) if tools else None
        safe = self._harmless(messages)
        if known is None and not any(m["role"] == "tool" or "tool_calls" in m for m in safe):
            return self._opened(self.joined(safe))
        talk = self.joined(self._as_taken(safe))
        if known is None:  # they were taken away
            return self._opened(talk)
        return self._opened(talk, known) if self.tool_use.native else self._opened(with_tools(talk, known.text))

    def _opened(self, talk: Sequence[Message], tools: _ToolsText | None = None) -> str:
        """The template's text. Shapes of conversations are remembered for a day: some templates write the date."""
        if self._day != (day := self.today()):
            self._day = day
            self._openings.clear()
        number = tools.number if tools else -1
        frames = self._openings.get(number)
        if frames is None:
            native = tools.native if tools else None
            write = partial(render, self.tokenizer, tools=native, generation_prompt=True)
            frames = self._openings.keep(number, Frames(write))
        return frames.render(talk)

    def reply(self, messages: Sequence[Message], said: Sequence[int] = ()) -> tuple[int, ...]:
        """The ids after the agent's turn: the new messages, up to the start of its next turn.

        said: the turn's ids; its last one stands for the end that the template writes, also where it is another.
        Results of calls come first, all of a turn together. Raises UserError where the template does not take the
        messages, or drops a result.
        """
        frames, end, num_end = self._continuation(said[-1] if said else None)
        text = end + frames.render([self._without_unused(message) for message in self._harmless(messages)])
        ids = self._replies.get((text, num_end))
        if ids is None:
            ids = self.tokenizer.encode(text)[num_end:]
            if len(text) <= _REMEMBERED_CHARS:
                self._replies.keep((text, num_end), ids)
        return ids

    def _continuation(self, last: int | None) -> tuple[Frames, str, int]:
        """What follows a turn with this last id, the id as text, and how many tokens that text is."""
        known = self._continuations.get(last)
        if known is None:
            end = self.stop if last is None else self.tokenizer.decode([last])
            frames = Frames(partial(self.between_turns, end=end))
            # Some tokenizers begin a text otherwise than they continue it, so it is encoded with what is before it.
            known = self._continuations.keep(last, (frames, end, len(self.tokenizer.encode(end))))
        return known

    def parse(self, completion_ids: Sequence[int]) -> Parsed:
        """What the agent said, without its end token: its calls, and what is outside of them."""
        said = self._without_end(completion_ids)
        if not self.opens_thought:
            return self.tool_use.format.parse_ids(said, self.tokenizer)
        begun = self.opens_thought  # by the prompt: a call in that thought is none
        parsed = self.tool_use.format.parse_ids((*self.tokenizer.encode(begun), *said), self.tokenizer)
        return Parsed(parsed.content.removeprefix(begun), parsed.calls)

    @cached_property
    def opens_thought(self) -> str:
        """The thought's beginning that the template writes for the agent; "" of most."""
        prompt = self.tokenizer.render([USER], generation_prompt=True)
        _, mark, rest = prompt.rpartition(_THOUGHTS[0])
        return mark + rest if mark and not rest.strip() else ""

    def turn(self, message: Message | str) -> tuple[int, ...]:
        """An agent's turn that was written, not sampled (a demonstration), with its end token.

        Its calls are written as the template writes them.
        """
        given: Message = {"role": "assistant", "content": message} if isinstance(message, str) else message
        [safe] = self._harmless([given])
        return self.tokenizer.encode(self.written(safe)) + self.tokenizer.encode(
            self.call_stop if _calls_of(safe) else self.stop
        )

    def text(self, completion_ids: Sequence[int]) -> str:
        """What the agent said, without its end token."""
        return self.tokenizer.decode(self._without_end(completion_ids))

    def _without_end(self, completion_ids: Sequence[int]) -> Sequence[int]:
        if completion_ids and completion_ids[-1] in self.end_ids:
            return completion_ids[:-1]
        return completion_ids

    @cached_property
    def _unused(self) -> frozenset[str]:
        """The fields of a result, name or id, that the template does not write."""
        result: Message = {"role": "tool", "content": "0", "name": "tool", "tool_call_id": "call00001"}
        text = self.between_turns([result], self.stop)
        others: list[tuple[str, Message]] = [
            ("name", {**result, "name": "other"}), ("tool_call_id", {**result, "tool_call_id": "call00002"}),
        ]  # fmt: skip
        return frozenset(field for field, other in others if self.between_turns([other], self.stop) == text)

    def _without_unused(self, message: Message) -> Message:
        if message["role"] != "tool" or not self._unused:
            return message
        kept: Message = {"role": "tool", "content": message["content"]}
        if "name" not in self._unused:
            kept["name"] = message.get("name", "tool")
        if "tool_call_id" not in self._unused:
            kept["tool_call_id"] = message.get("tool_call_id", "call00000")
        return kept

    def between_turns(self, messages: Sequence[Message], end: str) -> str:
        """The template's text from the `end` of an agent's turn, which is left out, to the start of its next turn."""
        if any(message["role"] == "tool" for message in messages):
            text = self._after_calls(messages)
        else:
            text = _after_turn(self.tokenizer, self.joined(messages, opening=False), generation_prompt=True)
        for written in (end, self.turn_end):
            if written and text.lstrip().startswith(written):
                return text.lstrip()[len(written) :]
        return text

    def _after_calls(self, messages: Sequence[Message]) -> str:
        """What the template writes after a turn whose calls these messages answer."""
        use = self.tool_use
        new = self.joined(result_messages(messages, use.results_as), opening=False)
        calls = [
            ToolCall(message.get("name", "tool"), {}, message.get("tool_call_id", "call00000"))
            for message in messages
            if message["role"] == "tool"
        ]
        text = ""
        if use.results_as == "tool" and use.calls_as != "content":
            with suppress(UserError):  # some take one call a turn
                text = _after_calling_turn(self.tokenizer, calling_message(calls, "", use.calls_as), new)
        text = text or _after_turn(self.tokenizer, new, generation_prompt=True)
        for message in messages:
            if message["role"] == "tool" and not _is_in(message["content"], text):
                raise UserError(
                    f"the chat template drops the result of a tool, {message['content'][:80]!r}, in {text[-200:]!r}. "
                    f"{TEMPLATE_ADVICE}"
                )
        return text

    def joined(self, messages: Sequence[Message], *, opening: bool = True) -> Sequence[Message]:
        """The messages as the template takes their roles: `Roles.taken`. opening: they begin the conversation."""
        return self._roles.taken(messages, opening=opening)

    def _call_end(self, use: ToolUse) -> str:
        """The token that ends a turn that calls; "": the one of every turn."""
        if use.calls_as == "content" or use.results_as != "tool":
            return ""
        call = calling_message([ToolCall("tool", {}, "call00001")], "", use.calls_as)
        result: Message = {"role": "tool", "content": "0", "name": "tool", "tool_call_id": "call00001"}
        with suppress(UserError):
            before = self.tokenizer.render([USER, call], generation_prompt=False).rstrip()
            ended = next((token for token in self.tokenizer.special_tokens if before.endswith(token)), "")
            if ended and ended not in use.format.markers:
                return ended
            return _leading_token(self.tokenizer, _after_calling_turn(self.tokenizer, call, [result]).lstrip())
        return ""

    def written(self, message: Message) -> str:
        """What a turn says: its content and its calls."""
        calls = _calls_of(message)
        if not calls:
            return message["content"]
        use = self.tool_use
        ours = use.format.write(calls, message["content"])
        if self.opens_thought and _THOUGHTS[1] not in ours:
            ours = f"{_THOUGHTS[1]}\n\n{ours}"
        if use.calls_as == "content":
            return ours
        with suppress(UserError):
            before = self.tokenizer.render([USER], generation_prompt=True)
            turn = calling_message(calls, message["content"], use.calls_as)
            whole = self.tokenizer.render([USER, turn], generation_prompt=False).rstrip().removesuffix(self.call_stop)
            if not whole.startswith(before) and before.rstrip().endswith(_THOUGHTS[0]):
                before = before.rstrip()  # an empty thought, closed as the template closes it
            said = whole[len(before) :]
            if whole.startswith(before) and _is_read(use.format.parse(said), calls):
                return said
        return ours

    def _as_taken(self, messages: Sequence[Message]) -> list[Message]:
        """Turns that call, and the results of each, as the template takes them."""
        taken: list[Message] = []
        for are_results, run in groupby(messages, lambda message: message["role"] == "tool"):
            if are_results:
                taken += result_messages(list(run), self.tool_use.results_as)
                continue
            for message in run:
                calls = _calls_of(message)
                taken.append(call_message(calls, message["content"], self.tool_use) if calls else message)
        return taken

    def _known(self, tools: Schemas) -> _ToolsText:
        if len(self._tools_texts) >= _MAX_TOOLS_TEXTS:  # tools of each episode, or that change
            self._tools_texts.clear()
            self._tools_texts_by_json.clear()
        if id(tools) not in self._tools_texts:
            text = json.dumps(list(tools))
            if text not in self._tools_texts_by_json:
                plain, use = json.loads(text), self.tool_use
                described = "" if use.native else tools_text(plain, use.format, self._tool_instruction)
                self._tools_texts_by_json[text] = _ToolsText(next(self._numbers), plain, described)
            self._tools_texts[id(tools)] = tools, self._tools_texts_by_json[text]
        return self._tools_texts[id(tools)][1]

    def _harmless(self, messages: Sequence[Message]) -> list[Message]:
        """Special tokens in a message's text are broken up: only the template writes control tokens.

        So are, where there are tools, the texts around calls and results in what users and tools say.
        """
        safe: list[Message] = []
        for message in messages:
            if message["role"] == "tool":
                self.tool_use  # noqa: B018  from now on there are tools
                break
        for message in messages:
            marks = self._marks_of[message["role"]]
            changed: Message = {**message, "content": marks.broken_up(message["content"])}
            if "name" in message:  # of a tool, as the agent called it
                changed["name"] = marks.broken_up(message["name"])
            if "tool_calls" in message:
                changed["tool_calls"] = [marks.all_broken_up(call) for call in message["tool_calls"]]
            safe.append(changed)
        return safe


def _marks_of(tokenizer: Tokenizer, of_tools: Sequence[str]) -> Mapping[Role, Marks]:
    """What no message of a role may contain. of_tools: what is around calls and results, where there are tools."""
    control = tokenizer.special_tokens
    said, heard = Marks(control), Marks((*control, *of_tools))
    return {"system": said, "assistant": said, "user": heard, "tool": Marks((*control, *of_tools, *_THOUGHTS))}


def _calls_of(message: Message) -> list[ToolCall]:
    calls: list[ToolCall] = []
    for call in message.get("tool_calls", ()):
        assert isinstance(call, Mapping)
        function, call_id = call["function"], call.get("id", "")
        assert isinstance(function, Mapping)
        arguments = function["arguments"]
        assert isinstance(arguments, Mapping)
        calls.append(ToolCall(str(function["name"]), arguments, str(call_id)))
    return calls


def _is_read(parsed: Parsed, calls: Sequence[ToolCall]) -> bool:
    return len(parsed.calls) == len(calls) and all(map(is_same_call, parsed.calls, calls))


def _is_in(content: str, text: str) -> bool:
    """Whether a text is in another as it is, trimmed, or as JSON."""
    return content.strip() in text or any(
        json.dumps(content, ensure_ascii=ascii_only)[1:-1] in text for ascii_only in (False, True)
    )


def _after_calling_turn(tokenizer: Tokenizer, called: Message, messages: Sequence[Message]) -> str:
    """What follows a turn that calls; "" where the template writes that turn otherwise when messages follow."""
    turn = tokenizer.render([USER, called], generation_prompt=False).rstrip()
    whole = tokenizer.render([USER, called, *messages], generation_prompt=True)
    return whole[len(turn) :] if whole.startswith(turn) else ""


def _after_turn(tokenizer: Tokenizer, messages: Sequence[Message], *, generation_prompt: bool) -> str:
    """What the template writes after an agent's turn that `messages` follow."""
    talk: list[Message] = [USER, {"role": "assistant", "content": AGENT}, *messages]
    text = tokenizer.render(talk, generation_prompt=generation_prompt)
    _, mark, tail = text.partition(AGENT)
    if not mark:
        raise UserError(f"the chat template drops an agent's turn: {text[-200:]!r}. {TEMPLATE_ADVICE}")
    return tail


def _turn_end(tokenizer: Tokenizer) -> tuple[str, str]:
    """The special token that the template writes after an agent's earlier turn, and the one to stop sampling at.

    They are the same for most models. Harmony ends the last turn with one token and writes another in its place
    when the conversation goes on. GLM has no end: a turn stops where the next message begins. "": unknown.
    """
    last = earlier = ""
    with suppress(UserError):  # it may take no second message, and need not for one turn
        last = _after_turn(tokenizer, [], generation_prompt=False)
        earlier = _after_turn(tokenizer, [USER], generation_prompt=True)
    if stop := _leading_token(tokenizer, last.lstrip()):
        token = _leading_token(tokenizer, earlier.lstrip())
        begins = _leading_token(tokenizer, earlier.lstrip()[len(token) :].lstrip())  # the next message
        return token if token == stop or begins else "", stop
    return "", _leading_token(tokenizer, earlier)


def _leading_token(tokenizer: Tokenizer, text: str) -> str:
    return next((token for token in tokenizer.special_tokens if text.startswith(token)), "")
