"""Storms: random events from a seed, with an assertion for each promise, by the clock that jumps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from agentgym.testing import run_fast


class Storm(Protocol):
    async def play(self) -> None: ...


def run_storms(make: Callable[[int], Storm], seeds: Iterable[int]) -> None:
    """One after another, made within its loop; a failure names its seed."""

    async def play(seed: int) -> None:
        await make(seed).play()

    for seed in seeds:
        try:
            run_fast(play(seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
