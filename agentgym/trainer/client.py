"""The trainer as the controller sees it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import cast

from agentgym.actors.actor import ActorOptions
from agentgym.actors.process_group import ProcessGroup
from agentgym.actors.runtime import Runtime, current_runtime
from agentgym.errors import InfraError
from agentgym.rl.losses import Loss
from agentgym.trainer.actor import TitanTrainer, TrainerSetup, TrainerStatus
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.types import Sample
from agentgym.weights.select import process_imports
from agentgym.weights.store import WeightStore

HOST = "127.0.0.1"


class TrainerClient:
    """Every call has a deadline, trainer.step_timeout_s. The death of a trainer process ends the call under
    way with an InfraError that names it; nothing restarts it, because its last step is lost.
    """

    def __init__(
        self,
        *,
        model_path: str,
        trainer: TrainerConfig,
        optimizer: OptimizerConfig,
        loss: Loss,
        total_steps: int,
        folder: str,
        store: WeightStore | None = None,
        runtime: Runtime | None = None,
        random_weights: bool = False,
        temperature: float = 1.0,
        name: str = "trainer",
    ) -> None:
        """store: where `publish` puts the weights; None for a trainer that never publishes.

        temperature: the sampler's, so that log-probabilities are of the same distribution.
        """
        self._setup = TrainerSetup(
            model_path=model_path,
            trainer=trainer,
            optimizer=optimizer,
            loss=loss,
            total_steps=total_steps,
            folder=folder,
            random_weights=random_weights,
            temperature=temperature,
        )
        self._timeout_s = trainer.step_timeout_s
        self._store = store
        self._runtime = runtime or current_runtime()
        self._name = name
        self._group: ProcessGroup | None = None

    async def start(self) -> None:
        """Start the processes and build the engine. Raises UserError for a model that can't be trained."""
        options = trainer_options(self._setup.trainer, self._store)
        group = TitanTrainer.launch(
            self._name, self._setup, self._store, options=options, runtime=self._runtime
        )
        self._group = group
        try:
            await group.start(timeout_s=self._timeout_s)
            await group.call("setup", timeout_s=self._timeout_s)
        except BaseException:
            await self.close()
            raise

    async def step(self, samples: Sequence[Sample]) -> dict[str, float]:
        """One optimizer step; the metrics of rank 0, which are those of the whole batch."""
        return cast(dict[str, float], await self._call("train_step", samples))

    async def logprobs(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        """Log-probability of every token given those before it, [L] each; 0.0 at index 0."""
        return cast(list[tuple[float, ...]], await self._call("logprobs", samples))

    async def publish(self, version: int) -> None:
        """Put the weights into the store. Raises ValueError when it holds that version already."""
        await self._call("push_weights", version)

    async def save(self, folder: str) -> None:
        """Write everything that is needed to go on."""
        await self._call("save", folder)

    async def load(self, folder: str) -> None:
        """Go on from what `save` wrote."""
        await self._call("load", folder)

    async def export_hf(self, folder: str) -> None:
        """Write a Hugging Face folder."""
        await self._call("export_hf", folder)

    async def status(self) -> list[TrainerStatus]:
        """Of every process, by rank."""
        return cast(list[TrainerStatus], await self._started().call("get_status", timeout_s=self._timeout_s))

    def pids(self) -> list[int]:
        return list(self._started().pids)

    async def close(self) -> None:
        """Safe to call twice."""
        if self._group is not None:
            group, self._group = self._group, None
            await group.stop()

    async def _call(self, endpoint: str, *args: object) -> object:
        answers = await self._started().call(endpoint, *args, timeout_s=self._timeout_s)
        return answers[0]

    def _started(self) -> ProcessGroup:
        if self._group is None:
            raise InfraError(f"the {self._name} is not running; await start() first")
        return self._group


def trainer_options(config: TrainerConfig, store: WeightStore | None) -> ActorOptions:
    """Where the trainer's processes run, with the variables that torchrun would set."""
    port = free_port()
    return ActorOptions(
        procs=config.procs,
        with_gpus=config.device != "cpu",
        gpus=config.gpus,
        share_gpus=True,
        threads=config.threads,
        environment_by_rank=tuple(_rank_variables(rank, config.procs, port) for rank in range(config.procs)),
        imports=() if store is None else process_imports(store),
    )


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _rank_variables(rank: int, procs: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(procs),
        "LOCAL_WORLD_SIZE": str(procs),
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",  # gloo else looks the host name up, which fails on many laptops
    }
