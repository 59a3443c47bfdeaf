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
        """Whether requests that would hold up others wait for each other; see `generators.slots.AdaptiveSlots`."""
        return False

    @abstractmethod
    def build(self, generator: GeneratorConfig, model_path: str) -> GeneratorEngine:
        """An engine for the model in a local Hugging Face folder; its `start` is called next, in this process.

        Raises UserError for a model, device or engine that is unavailable.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorConfig:
    """The service of replicas that sample; between min_replicas and max_replicas it scales by itself."""

    engine: EngineConfig = component("generator_engines", "auto")
    """`auto` takes vllm where it is installed with a GPU, else native, or transformers for what native refuses."""
    replicas: int = 2
    """Replicas at the start, each with the whole model."""
    min_replicas: int | None = None
    """The fewest replicas; null is as many as at the start."""
    max_replicas: int | None = None
    """The most replicas; null is as many as at the start."""
    grow_after_s: float = 5.0
    """Seconds for which requests must have waited for slots before a replica is added."""
    shrink_after_s: float = 60.0
    """Seconds for which one replica fewer must have sufficed before one is removed; longer than a training step."""
    max_batch: int = 64
    """Sequences that one replica decodes at a time."""
    max_model_len: int = 1024
    """Tokens of a prompt and its completion together."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """The type of weights and computation in the engine."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the engine computes; `auto` is a GPU where there is one."""
    gpus: tuple[int, ...] = ()
    """The numbers of the replicas' GPUs, as many for each as its engine takes; empty lets the planner choose them."""
    threads: int = 1
    """Threads of torch in each replica, on a CPU."""
    batch_invariant: bool = False
    """Make a request's tokens independent of the requests beside it, to the last bit: the native engine in float32 on
    one thread of a CPU, or vLLM's own mode of that name on a GPU. loop.deterministic sets it."""
    routes: bool = False
    """Return the experts that computed each token of a mixture of experts. trainer.router_replay sets it."""
    start_timeout_s: float = 300.0
    """Seconds that a replica may take to start; vLLM's first start compiles for minutes."""
    update_timeout_s: float = 120.0
    """Seconds that a replica may take to load new weights; then it is replaced."""
    probe_every_s: float = 2.0
    """Seconds between checks of whether a replica still answers."""
    probe_timeout_s: float = 5.0
    """Seconds within which it must answer such a check."""
    max_respawns: int = 5
    """How often one replica may die in a row until it is given up; with fewer than min_replicas the run ends."""
    max_waiting: int = 4096
    """Requests that may wait at one replica; further ones wait at the caller."""

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
