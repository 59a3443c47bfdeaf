"""A policy whose ids do not survive tokenizing again, and the proof that they are trained as they were sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from agentgym.rl.samples import group_samples
from agentgym.testing import CharacterTokenizer
from agentgym.types import Completion, Episode, FinishReason, GenerateRequest, Group, Sample, VersionSpan

_PAIRS = 0x200000  # the ids of two characters begin here


class OddTokenizer(CharacterTokenizer):
    """The policy samples pairs of characters, ids that encoding never gives."""

    def __init__(self) -> None:
        super().__init__()
        self._pairs: list[str] = []

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(
            self._pairs[i - _PAIRS] if i >= _PAIRS else super(OddTokenizer, self).decode([i]) for i in token_ids
        )

    def sampled(self, text: str) -> tuple[int, ...]:
        """The text as this policy says it."""
        pieces = [text[at : at + 2] for at in range(0, len(text), 2)]
        self._pairs += sorted(set(pieces) - set(self._pairs))
        return (*(_PAIRS + self._pairs.index(piece) for piece in pieces), 2)


def calling(name: str, arguments: str, text: str = "") -> str:
    """A turn that calls a tool. arguments: JSON as the policy writes it, with spaces of its own."""
    return f'{text}<tool_call>\n{{"name" : "{name}","arguments":{arguments}}}\n</tool_call>'


@dataclass
class ScriptedEngine:
    """Says the next of its texts at each call, or what `answer` makes of the prompt; every token has a log-probability
    that no other has.

    while_sampling: is called in the middle of a completion, whose tokens are of the versions before and after.
    """

    tokenizer: OddTokenizer
    says: Iterator[str]
    version: int = 0
    while_sampling: Callable[[], None] = lambda: None
    gate: asyncio.Event | None = None  # completions wait for it
    answer: Callable[[str], str] | None = None
    sampled: dict[float, tuple[tuple[int, ...], int, int]] = field(default_factory=dict)  # logprob: prefix, id, version
    requests: list[GenerateRequest] = field(default_factory=list)
    num_finished: int = 0

    async def generate(self, request: GenerateRequest) -> Completion:
        said = self.answer(self.tokenizer.decode(request.prompt_ids)) if self.answer else next(self.says)
        ids = self.tokenizer.sampled(said)[: request.sampling.max_tokens]
        self.requests.append(request)
        if self.gate is not None:
            await self.gate.wait()
        half, first = len(ids) // 2, self.version
        self.while_sampling()
        logprobs = tuple(-1e-6 * (1 + len(self.sampled) + n) for n in range(len(ids)))
        for n, (token, logprob) in enumerate(zip(ids, logprobs, strict=True)):
            prefix = (*request.prompt_ids, *ids[:n])
            self.sampled[logprob] = prefix, token, first if n < half else self.version
        begun = VersionSpan(version=first, start=0, end=half)
        spans = (begun, VersionSpan(version=self.version, start=half, end=len(ids)))
        whole = VersionSpan(version=first, start=0, end=len(ids))
        self.num_finished += 1
        return Completion(
            completion_ids=ids,
            logprobs=logprobs,
            versions=(whole,) if first == self.version else spans,
            finish_reason=FinishReason.STOP if ids[-1] == 2 else FinishReason.LENGTH,
        )

    async def update_weights(self, version: int) -> None:
        self.version = version


def samples_of(episode: Episode) -> list[Sample]:
    """One for each branch."""
    group = Group(group_id=0, task=episode.task, start_version=0, episodes=[episode], advantages=[1.0])
    return group_samples([group])


def prove(episode: Episode, engine: ScriptedEngine) -> list[Sample]:
    """Assert that what is trained is what was sampled: each token once, behind the very tokens that came before it."""
    samples = samples_of(episode)
    trained = [
        (sample.logprobs[at], (sample.token_ids[:at], sample.token_ids[at], sample.versions[at]))
        for sample in samples
        for at, mask in enumerate(sample.loss_mask)
        if mask
    ]
    assert len(trained) == len(engine.sampled) > 0, "a token is trained twice, or never"
    assert dict(trained) == engine.sampled
    assert all(engine.tokenizer.encode(engine.tokenizer.decode(s.token_ids)) != s.token_ids for s in samples)
    return samples
