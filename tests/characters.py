"""Fakes of our own protocols, and their fixtures: a character tokenizer and a generator with given answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import jinja2
import pytest

from agentgym.errors import UserError
from agentgym.text.tokenizer import CHATML
from agentgym.types import Completion, FinishReason, GenerateRequest, Message, VersionSpan

SPECIAL = ("<|im_start|>", "<|im_end|>")


class CharacterTokenizer:
    """One id per character; the special tokens are 1 and 2."""

    def __init__(self, template: str = CHATML) -> None:
        self._template = jinja2.Environment().from_string(template)

    @property
    def end_ids(self) -> tuple[int, ...]:
        return (2,)

    @property
    def special_tokens(self) -> tuple[str, ...]:
        return SPECIAL

    def encode(self, text: str) -> tuple[int, ...]:
        ids: list[int] = []
        while text:
            token = next((t for t in SPECIAL if text.startswith(t)), None)
            ids.append(SPECIAL.index(token) + 1 if token else ord(text[0]))
            text = text[len(token) if token else 1 :]
        return tuple(ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(SPECIAL[i - 1] if i in (1, 2) else chr(i) for i in token_ids)

    def render(self, messages: Sequence[Message], *, generation_prompt: bool, tools: object = None) -> str:
        try:
            return self._template.render(messages=messages, tools=tools, add_generation_prompt=generation_prompt)
        except jinja2.TemplateError as error:
            raise UserError(f"the chat template does not take the messages: {error}") from error


@dataclass
class SpeakingGenerator:
    """Answers with the texts of `says` in turn; an exception among them is raised.

    delay_s: of each answer; one that takes longer than its request allows is cut in the middle. queued_s: as reported.
    """

    tokenizer: CharacterTokenizer
    says: list[str | Exception]
    version: int = 0
    delay_s: float = 0.0
    queued_s: float = 0.0
    requests: list[GenerateRequest] = field(default_factory=list)

    async def generate(self, request: GenerateRequest) -> Completion:
        self.requests.append(request)
        late = self.delay_s > request.time_s
        await asyncio.sleep(min(self.delay_s, request.time_s))
        said = self.says[(len(self.requests) - 1) % len(self.says)]
        if isinstance(said, Exception):
            raise said
        ids = (*self.tokenizer.encode(said), 2)
        cut = ids[: len(ids) // 2 if late else request.sampling.max_tokens]
        return Completion(
            completion_ids=cut,
            logprobs=tuple(-0.5 for _ in cut),
            versions=(VersionSpan(version=self.version, start=0, end=len(cut)),),
            finish_reason=FinishReason.TIME if late else FinishReason.STOP if cut == ids else FinishReason.LENGTH,
            queued_s=self.queued_s,
        )

    async def update_weights(self, version: int) -> None:
        self.version = version


@pytest.fixture
def tokenizer() -> CharacterTokenizer:
    return CharacterTokenizer()


@pytest.fixture
def speaking(tokenizer: CharacterTokenizer):
    def make(*says: str | Exception, delay_s: float = 0.0, queued_s: float = 0.0) -> SpeakingGenerator:
        return SpeakingGenerator(tokenizer=tokenizer, says=list(says), delay_s=delay_s, queued_s=queued_s)

    return make


@pytest.fixture
def tokenizer_of():
    return CharacterTokenizer
