"""The generators of a run as a rollout worker has them: its requests go to the replicas directly."""

from __future__ import annotations

import itertools

from agentgym.actors.caller import Caller
from agentgym.actors.remote import RemoteService, Routes
from agentgym.generators.actor import Generator
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.service import sampled_by, service_settings
from agentgym.types import Completion, GenerateRequest


class RemoteGenerators:
    """A `agentgym.rollout.generator.Generator` whose replicas the controller starts, updates and replaces.

    Which weights a token is of, the replica says; a group has its own version from the controller.
    """

    def __init__(self, name: str, caller: Caller, config: GeneratorConfig) -> None:
        """name: of the worker; no two have the same."""
        self._name = name
        self._settings = settings = service_settings(config)
        self._service = RemoteService(
            "generator", Generator, caller, max_replicas=config.most_replicas, settings=settings
        )
        self._call_ids = itertools.count()

    @property
    def version(self) -> int:
        raise AssertionError("a group's version comes with its order")

    async def generate(self, request: GenerateRequest) -> Completion:
        """See `agentgym.rollout.generator.Generator`."""
        return await sampled_by(self._service, request, f"{self._name}-{next(self._call_ids)}", self._settings)

    async def update_weights(self, version: int) -> None:
        raise AssertionError("a rollout worker does not update the generators")

    def follow(self, routes: Routes) -> None:
        """From now on these replicas are up."""
        self._service.follow(routes)

    @property
    def demand(self) -> int:
        """Requests at the replicas, and those that wait for one."""
        return self._service.demand

    def get_metrics(self) -> dict[str, float]:
        return self._service.get_metrics()
