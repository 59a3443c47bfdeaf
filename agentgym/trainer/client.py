"""The trainer as the controller sees it."""

from __future__ import annotations

from typing import TypeVar, TypeVarTuple

from agentgym.actors.endpoint import Endpoint
from agentgym.actors.options import ActorOptions
from agentgym.actors.process_group import ProcessGroup
from agentgym.actors.runtime import Runtime, current_runtime
from agentgym.errors import InfraError
from agentgym.trainer.actor import TitanTrainer
from agentgym.trainer.config import TrainerConfig
from agentgym.trainer.setup import TrainerSetup
from agentgym.weights.store import WeightStore

R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class TrainerClient:
    """Starts the trainer's processes and calls them, each time with the deadline trainer.step_timeout_s.

    The death of a trainer process ends the call under way with an InfraError that names it. Nothing restarts
    it, because its last step is lost.
    """

    def __init__(
        self,
        setup: TrainerSetup,
        *,
        store: WeightStore | None = None,
        runtime: Runtime | None = None,
        name: str = "trainer",
    ) -> None:
        """store: where `push_weights` puts the weights; None for a trainer that never does."""
        self._setup = setup
        self._timeout_s = setup.trainer.step_timeout_s
        self._store = store
        self._runtime = runtime or current_runtime()
        self._name = name
        self._group: ProcessGroup[TitanTrainer] | None = None

    async def start(self) -> None:
        """Start the processes and build the engine. Raises UserError for a model that can't be trained."""
        options = trainer_options(self._setup.trainer, self._store, self._name)
        self._group = TitanTrainer.launch(self._name, self._setup, self._store, options=options, runtime=self._runtime)
        try:
            await self._group.start(timeout_s=self._timeout_s)
            await self.call(TitanTrainer.setup)
        except BaseException:
            await self.close()
            raise

    async def call(self, method: Endpoint[TitanTrainer, *Ts, R], *args: *Ts) -> R:
        """Call an endpoint on every process; the answer of rank 0, whose metrics are of the whole batch."""
        return (await self.call_all(method, *args))[0]

    async def call_all(self, method: Endpoint[TitanTrainer, *Ts, R], *args: *Ts) -> list[R]:
        """Call an endpoint on every process; answers by rank."""
        return await self._started().call(method, *args, timeout_s=self._timeout_s)

    def pids(self) -> list[int]:
        return list(self._started().pids)

    async def close(self) -> None:
        """Safe to call twice."""
        if self._group is not None:
            group, self._group = self._group, None
            await group.stop()

    def _started(self) -> ProcessGroup[TitanTrainer]:
        if self._group is None:
            raise InfraError(f"the {self._name} is not running; await start() first")
        return self._group


def trainer_options(config: TrainerConfig, store: WeightStore | None, hosts: str = "trainer") -> ActorOptions:
    """Where the trainer's processes run. hosts: trainer or reference."""
    return ActorOptions(
        procs=config.procs,
        hosts=hosts,
        with_gpus=config.device != "cpu",
        gpus=config.gpus,
        share_gpus=True,
        threads=config.threads,
        torchrun=True,
        imports=() if store is None else store.process_imports,
    )
