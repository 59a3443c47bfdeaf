"""Demonstrations as tokens, made in other processes ahead of the trainer, in an order that does not depend on them."""

from __future__ import annotations

import itertools
import multiprocessing
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass

from agentgym.rl.demonstrations import Written, written
from agentgym.text.chat import ChatRenderer
from agentgym.text.tokenizer import HuggingFaceTokenizer
from apps.sft.mix import MixConfig, mixed

CHUNK = 1024  # conversations
AHEAD = 3  # chunks that are being made or wait, for each process


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """tokenizer: a folder. seq_len: longer conversations are left out."""

    mix: MixConfig
    seed: int
    tokenizer: str
    seq_len: int


_renderers: dict[str, ChatRenderer] = {}


def make_chunk(config: StreamConfig, number: int) -> list[Written]:
    """The conversations of a chunk as tokens, those that fit."""
    if config.tokenizer not in _renderers:
        _renderers[config.tokenizer] = ChatRenderer(HuggingFaceTokenizer(config.tokenizer))
    renderer = _renderers[config.tokenizer]
    made = (written(one, renderer) for one in itertools.islice(mixed(config.mix, config.seed, number), CHUNK))
    return [one for one in made if len(one) <= config.seq_len]


def chunks(config: StreamConfig, workers: int) -> Iterator[list[Written]]:
    """Endless, the same for every number of workers; 0 makes them in this process. Close it to end the workers."""
    if not workers:
        yield from (make_chunk(config, number) for number in itertools.count())
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        waiting: deque[Future[list[Written]]] = deque()
        for number in itertools.count():
            waiting.append(pool.submit(make_chunk, config, number))
            if len(waiting) >= AHEAD * workers:
                yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
