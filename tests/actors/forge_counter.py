"""Actors as torchforge's documents write them; other processes import them, so they are in a module of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from agentgym.actors.actor import ServiceActor as ForgeActor
from agentgym.actors.endpoint import endpoint


class ForgeCounter(ForgeActor):
    num_replicas = 2

    def __init__(self, initial_value: int) -> None:
        self.value = initial_value

    @endpoint
    async def setup(self) -> None:
        self.threads = {threading.get_ident()}

    @endpoint
    def increment(self) -> int:
        before = self.value
        self.threads.add(threading.get_ident())
        self.value = before + 1
        return self.value

    @endpoint
    def get_value(self, *, plus: int = 0) -> int:
        return self.value + plus

    @endpoint
    async def reset(self) -> None:
        self.value = 0

    @endpoint
    async def num_threads(self) -> int:
        return len(self.threads)


def brevity(prompt: str, response: str, target: str) -> float:
    return float(target in response) / len(response)


@dataclass
class Judge(ForgeActor):
    reward_functions: list[Callable[..., float]]

    def __post_init__(self) -> None:
        if not self.reward_functions:
            raise ValueError("no functions")

    @endpoint
    async def evaluate_response(self, prompt: str, response: str, target: str) -> float:
        return sum(judge(prompt, response, target) for judge in self.reward_functions) / len(self.reward_functions)
