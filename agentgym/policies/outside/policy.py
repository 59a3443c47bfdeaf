"""A policy behind a server: each turn is found in the cache, or asked for as often and as fast as the server allows."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from agentgym.errors import InfraError, UserError, nearest
from agentgym.policies.outside.answers import (
    ChatAnswer,
    ChatRequest,
    ChatServer,
    ServerFault,
    UnknownModel,
    Unsupported,
    read_answer,
    reported_usage,
)
from agentgym.policies.outside.cache import AnswerCache
from agentgym.policies.outside.config import PolicyConfig
from agentgym.policies.outside.pace import Pace
from agentgym.runs.usage import COUNTED
from agentgym.types import Json

log = logging.getLogger(__name__)

FIRST_WAIT_S = 1.0
FIRST_ESTIMATE = 256  # tokens of a completion, before any was seen
LOST_IN_A_ROW = 5  # requests without an answer, each after all its retries: the server is gone
_CHECK_TOKENS = 16


class ServerGone(InfraError):
    """The server answers nothing any more: not one episode's fault, so it ends the evaluation."""


class Answered(NamedTuple):
    """waited_s: before the request that was answered was sent. paid: by this evaluation, now or before it was
    interrupted. lost: tokens of answers that could not be used, after which it was asked again. from_cache: it was
    there already, whoever paid for it."""

    answer: ChatAnswer
    waited_s: float
    paid: bool
    lost: Mapping[str, int] = MappingProxyType({})
    from_cache: bool = False


@dataclass(slots=True, kw_only=True)
class ServedPolicy:
    """Shared by all episodes of an evaluation. say: what a person should read about it."""

    model: str
    config: PolicyConfig
    server: ChatServer
    cache: AnswerCache
    say: Callable[[str], None] = log.info
    counts: Counter[str] = field(default_factory=Counter)
    listed: list[str] | None = None
    _free: asyncio.Semaphore = field(init=False)
    _pace: Pace = field(init=False)
    _omit: set[str] = field(init=False)
    _renamed: bool = False  # max_tokens is called max_completion_tokens
    _lost_in_a_row: int = 0
    _completion_mean: float = FIRST_ESTIMATE

    def __post_init__(self) -> None:
        self._free = asyncio.Semaphore(self.config.concurrency)
        self._pace = Pace(self.config.requests_per_minute, self.config.tokens_per_minute)
        self._omit = set(self.config.omit)

    async def check(self, *, ask: bool = False, max_tokens: int = _CHECK_TOKENS) -> str:
        """Whether the server answers for this model: by its list, or by one request, whose answer is short.

        ask: also where the list has it. max_tokens: that the request allows. Returns what was found, for a person.
        Raises UserError for what the user has to change.
        """
        self.listed = await self._list()
        if self.listed is not None and self.model in self.listed and not ask:
            return f"{self.config.url} answers, and lists {self.model!r}"
        hello = ChatRequest(
            model=self.model,
            messages=({"role": "user", "content": "Say OK."},),
            max_tokens=max_tokens,
            temperature=1.0,
            seed=0,
            options=self.config.options,
        )
        body, _ = await self._tried(hello, Counter())
        answer = read_answer(body, hello)
        listed = "lists" if self.model in (self.listed or ()) else "does not list"
        tokens = answer.usage.completion_tokens
        return f"{self.config.url} {listed} {self.model!r}; {answer.model!r} answered with {tokens} tokens"

    async def _list(self) -> list[str] | None:
        faults = 0
        while True:
            try:
                return await self.server.models()
            except ServerFault as fault:
                if not fault.busy:  # it may be starting
                    raise UserError(
                        f"the server at {self.config.url}: {fault}. Is it running, and is this its address?"
                    ) from fault
                faults += 1
                await self._wait_after(fault, faults)
                await self._pace.begin(0)

    async def answer(self, request: ChatRequest) -> Answered:
        """The policy's next turn. Raises what `ChatServer.complete` raises, InfraError after all retries."""
        began_s = _now_s()
        if (known := self.cache.find(request)) is not None:
            self.counts["from_cache"] += 1
            paid = known.by == self.cache.by
            return Answered(read_answer(known.body, request), 0.0, paid, known.lost, from_cache=True)
        lost = Counter[str]()
        async with self._free:
            body, sent_s = await self._tried(request, lost)
        self.cache.keep(request, body, lost)
        return Answered(read_answer(body, request), sent_s - began_s, True, lost)

    async def _tried(self, request: ChatRequest, lost: Counter[str]) -> tuple[Json, float]:
        """The body of a readable answer, and when it was asked for. Adds to `lost` the tokens of unreadable ones."""
        faults = 0
        while True:
            asked = await self._pace.begin(request.prompt_estimate + round(self._completion_mean))
            sent_s = _now_s()
            self.counts["requests"] += 1
            try:
                body = await self.server.complete(self._body(request))
                usage = read_answer(body, request).usage
            except ServerFault as fault:
                if (of_fault := reported_usage(fault.body)) is not None:
                    lost.update({name: getattr(of_fault, name) for name in COUNTED})
                self._pace.settle(asked, 0)
                faults += 1
                await self._wait_after(fault, faults)
                continue
            except Unsupported as refused:
                self._adapt(refused)
                continue
            except UnknownModel as error:
                hint = nearest(self.model, self.listed or ())
                raise UserError(f"the server at {self.config.url} has no model {self.model!r}.{hint}") from error
            self._lost_in_a_row = 0
            self._pace.settle(asked, usage.prompt_tokens + usage.completion_tokens)
            self._completion_mean += (usage.completion_tokens - self._completion_mean) / 8
            return body, sent_s

    def _body(self, request: ChatRequest) -> dict[str, Json]:
        body = request.body(omit=sorted(self._omit))
        if self._renamed and "max_tokens" in body:
            body["max_completion_tokens"] = body.pop("max_tokens")
        return body

    def _adapt(self, refused: Unsupported) -> None:
        """Leave out what changes nothing about what is measured. Raises UserError for the rest.

        A request that was under way meanwhile is refused for what is left out already.
        """
        name = refused.parameter
        if name == "max_tokens" and not self._renamed:
            self._renamed = True
        elif name == "seed" and name not in self._omit:
            self._omit.add(name)
            self.say("the server takes no seed: its samples cannot be repeated, except from the cache")
        elif not self._is_settled(name):
            raise UserError(
                f"the server at {self.config.url} does not take {name} as the recipe has it: {refused}. Change it, or "
                f"leave it out with --policy.omit [{name}]"
            )

    def _is_settled(self, name: str) -> bool:
        self.counts["adapted"] += 1
        return (name == "max_tokens" or name in self._omit) and self.counts["adapted"] <= 2 * self.config.concurrency

    async def _wait_after(self, fault: ServerFault, faults: int) -> None:
        """Wait before the next try. Raises InfraError where there is none."""
        config = self.config
        wait_s = fault.retry_after_s
        if wait_s is None:
            wait_s = min(FIRST_WAIT_S * 2 ** (faults - 1), config.max_wait_s) * random.uniform(0.5, 1.0)
        if faults > config.max_retries or wait_s > config.max_wait_s:
            self._lost_in_a_row += 1
            self.counts["lost"] += 1
            why = f"{fault} ({faults} tries)" if faults > 1 else str(fault)
            if wait_s > config.max_wait_s:
                why = f"{fault}; it asks to wait for {wait_s:g} s, policy.max_wait_s is {config.max_wait_s:g}"
            lost = InfraError if self._lost_in_a_row < LOST_IN_A_ROW else ServerGone
            raise lost(f"the server at {config.url}: {why}") from fault
        self.counts["retries"] += 1
        if self.counts["retries"] in (1, 10, 100, 1000):
            self.say(f"the server at {config.url}: {fault}; asked again ({self.counts['retries']} times so far)")
        if fault.busy:
            self._pace.pause(wait_s)  # for all: each would be told the same
        else:
            await asyncio.sleep(wait_s)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
