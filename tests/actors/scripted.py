"""A generator engine without a model, chosen as a third party's: its tokens follow from prompt, seed and weights."""

from __future__ import annotations

import asyncio
import os
import signal
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym.errors import InfraError
from agentgym.generators.config import EngineConfig, GeneratorConfig
from agentgym.generators.engine import NotLoaded
from agentgym.types import Completion, FinishReason, GenerateRequest, VersionSpan

if TYPE_CHECKING:
    from torch import Tensor

HELD_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted(EngineConfig):
    """token_s: time per token. max_model_len: longer requests are refused. poison_token: a prompt that begins
    with it kills the process, as a request that breaks an engine would. start_error: raised by `start`.
    held_by: a file; while it is there, every request waits after its current token, a new one after its first.
    ended_by: a file; the first engine that sees it removes it, and is dead from then on while its process lives.
    """

    vocab_size: int = 256
    token_s: float = 0.0
    start_s: float = 0.0
    max_model_len: int = 1024
    poison_token: int | None = None
    start_error: str | None = None
    held_by: Path | None = None
    ended_by: Path | None = None

    def build(self, generator: GeneratorConfig, model_path: str) -> ScriptedEngine:
        return ScriptedEngine(self)


def scripted_tokens(
    prompt_ids: tuple[int, ...], seed: int | None, fingerprint: int, count: int, vocab_size: int
) -> tuple[int, ...]:
    """The tokens that the engine gives: different for other prompts, seeds and weights."""
    start = f"{prompt_ids} {seed} {fingerprint}"
    return tuple(zlib.crc32(f"{start} {i}".encode()) % vocab_size for i in range(count))


def fingerprint(weights: Iterable[tuple[str, Tensor]]) -> int:
    """A number that changes with any name or value."""
    total = 0
    for name, tensor in weights:
        data = tensor.detach().cpu().double().numpy().tobytes()
        total = zlib.crc32(name.encode() + data, total)
    return total


class ScriptedEngine:
    """Implements `GeneratorEngine`. The weights it starts with have version 0 and fingerprint 0."""

    def __init__(self, settings: Scripted) -> None:
        self._settings = settings
        self._version = 0
        self._fingerprint = 0
        self._running = 0
        self._tokens_total = 0
        self._busy_s = 0.0
        self._broken = False
        self._failure = ""
        self._asleep = False

    @property
    def version(self) -> int:
        return self._version

    @property
    def failure(self) -> str:
        if (path := self._settings.ended_by) is not None and path.exists():
            path.unlink()
            self._failure = "it was told to end"
            print("the engine's last words", flush=True)
        return self._failure

    async def start(self) -> None:
        await asyncio.sleep(self._settings.start_s)
        if self._settings.start_error is not None:
            raise ValueError(self._settings.start_error)

    async def generate(self, request: GenerateRequest) -> Completion:
        """A weight update during the call shows in the version spans, not in the tokens."""
        settings, sampling = self._settings, request.sampling
        if self._broken:
            raise InfraError("the last weight update failed; the engine has no whole weights to sample from")
        if request.prompt_ids and request.prompt_ids[0] == settings.poison_token:
            os.kill(os.getpid(), signal.SIGKILL)
        length = len(request.prompt_ids) + sampling.max_tokens
        if not request.prompt_ids or length > settings.max_model_len:
            raise ValueError(
                f"prompt of {len(request.prompt_ids)} and {sampling.max_tokens} new tokens: "
                f"allowed are 1 to {settings.max_model_len} together"
            )
        self._running += 1
        started_s = asyncio.get_running_loop().time()
        try:
            tokens = scripted_tokens(
                request.prompt_ids, sampling.seed, self._fingerprint, sampling.max_tokens, settings.vocab_size
            )
            versions: list[int] = []
            for _ in tokens:
                if settings.token_s:
                    await asyncio.sleep(settings.token_s)
                while self._asleep:
                    await asyncio.sleep(HELD_POLL_S)
                versions.append(self._version)
                while settings.held_by is not None and settings.held_by.exists():
                    await asyncio.sleep(HELD_POLL_S)
                if self.failure:
                    raise RuntimeError("no request can be served")
            self._tokens_total += len(tokens)
        finally:
            self._running -= 1
            self._busy_s += asyncio.get_running_loop().time() - started_s
        return Completion(
            completion_ids=tokens,
            logprobs=(-0.5,) * len(tokens),
            versions=_spans(versions),
            finish_reason=FinishReason.LENGTH,
        )

    async def update_weights(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        self._broken = True
        try:
            self._fingerprint = fingerprint(weights)
        except InfraError as error:
            self._broken = False
            raise NotLoaded(str(error)) from error
        self._version = version
        self._broken = self._asleep = False

    async def sleep(self) -> None:
        self._asleep = True

    def metrics(self) -> dict[str, float]:
        return {
            "generator/tokens_total": float(self._tokens_total),
            "generator/busy_s": self._busy_s,
            "generator/running": float(self._running),
            "generator/waiting": 0.0,
        }

    async def close(self) -> None:
        return None


def _spans(versions: list[int]) -> tuple[VersionSpan, ...]:
    spans: list[VersionSpan] = []
    start = 0
    for end in range(1, len(versions) + 1):
        if end == len(versions) or versions[end] != versions[start]:
            spans.append(VersionSpan(version=versions[start], start=start, end=end))
            start = end
    return tuple(spans)
