"""The generator service's settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from agentgym.components import component
from agentgym.generators.engine import GeneratorEngine


class EngineConfig(ABC):
    """What `generator.engine` chooses. Inherit it as a frozen dataclass: the fields are the engine's own settings."""

    __slots__ = ()

    @property
    def gpus_per_replica(self) -> int:
        """Over how many GPUs one replica's model is split."""
        return 1

    @property
    def sleeps(self) -> bool:
        """Whether replicas give their GPU's memory away while the trainer steps; see `generators.engine.Sleeps`."""
        return False

    @property
    def joins_together(self) -> bool:
        """Whether requests that would hold up others wait for each other; see `generators.places.Places`."""
        return False

    @abstractmethod
    def build(self, generator: GeneratorConfig, model_path: str) -> GeneratorEngine:
        """An engine for the model in a local Hugging Face folder; its `start` is called next, in this process.

        Raises UserError for a model, device or engine that is unavailable.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorConfig:
    """engine: auto takes vllm where it is installed with a GPU, else native, or transformers for what that refuses.

    batch_invariant: what a request gets does not depend on the requests beside it, to the last bit: the native engine
    in float32 on one thread of a CPU, or vLLM's own mode of that name on a GPU. loop.deterministic sets it.

    replicas: at the start. Between min_replicas and max_replicas (None: as many as at the start) they grow when more
    requests than they have places for last for grow_after_s, and shrink when for shrink_after_s even the most requests
    fitted into one fewer. Make shrink_after_s longer than a pause between bursts, for example a training step.
    """

    engine: EngineConfig = component("generator_engines", "auto")
    replicas: int = 2
    min_replicas: int | None = None
    max_replicas: int | None = None
    grow_after_s: float = 5.0
    shrink_after_s: float = 60.0
    max_batch: int = 64  # sequences that one replica decodes at a time
    max_model_len: int = 1024
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    gpus: tuple[int, ...] = ()  # as many for each replica as its engine takes; empty: they are planned
    threads: int = 1
    batch_invariant: bool = False
    start_timeout_s: float = 300.0
    update_timeout_s: float = 120.0
    probe_every_s: float = 2.0
    probe_timeout_s: float = 5.0
    max_respawns: int = 5  # of one replica, in a row
    max_waiting: int = 4096  # requests that may wait at one replica

    def __post_init__(self) -> None:
        if min(self.replicas, self.max_batch, self.max_model_len, self.threads) < 1:
            raise ValueError("generator.replicas, max_batch, max_model_len and threads must be at least 1")
        if not 1 <= self.fewest_replicas <= self.replicas <= self.most_replicas:
            raise ValueError(
                f"generator.min_replicas {self.fewest_replicas}, replicas {self.replicas} and max_replicas "
                f"{self.most_replicas}: give 1 or more, each at least as many as the one before"
            )
        if min(self.grow_after_s, self.shrink_after_s) <= 0:
            raise ValueError(
                f"generator.grow_after_s {self.grow_after_s:g} and shrink_after_s {self.shrink_after_s:g}: give more "
                "than 0 seconds"
            )
        each = self.engine.gpus_per_replica
        if self.gpus and len(self.gpus) != self.most_replicas * each:
            raise ValueError(
                f"generator.gpus {list(self.gpus)} are {len(self.gpus)}; {self.most_replicas} replicas of {each} "
                f"GPU(s) take {self.most_replicas * each}. Leave generator.gpus out to have them planned"
            )

    @property
    def fewest_replicas(self) -> int:
        return self.replicas if self.min_replicas is None else self.min_replicas

    @property
    def most_replicas(self) -> int:
        return self.replicas if self.max_replicas is None else self.max_replicas
