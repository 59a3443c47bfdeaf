"""The interface of a generator engine, as `native` and `vllm` implement it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from agentgym.contracts import Contract
from agentgym.errors import InfraError
from agentgym.types import Completion, GenerateRequest

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym.weights.store import StoredWeights


class NotLoaded(InfraError):
    """A version could not be read. The engine is as it was: it goes on with the weights that it has."""


class GeneratorEngine(Contract, Protocol):
    """Token ids in, token ids with the sampler's log-probabilities out. Lives in one process.

    Requests run concurrently (continuous batching). A weight update does not wait for them: they continue under
    the new weights with their cache recomputed, and their version spans say where.
    """

    @property
    @abstractmethod
    def version(self) -> int:
        """The version of the weights that the next token is sampled from."""

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def generate(self, request: GenerateRequest) -> Completion:
        """Raises ValueError for a request that can't be served, for example a context that is too long.

        When request.time_s is over, it returns what was sampled until then, at least one token, so that what is
        slow because it is long can be told from an engine that does not answer.
        Cancelling the call ends the request and frees its place in the batch.
        """

    @abstractmethod
    async def update_weights(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load weights under Hugging Face names; every name of the model must be given exactly once.

        A tied lm_head may be left out. After an error the engine refuses to generate, unless it is NotLoaded, which it
        may raise as long as it has changed nothing.
        """

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """Sums since the start: generator/tokens_total, generator/busy_s, generator/running, generator/waiting."""

    @abstractmethod
    async def close(self) -> None: ...


@runtime_checkable
class MergesAdapters(Protocol):
    """An engine that is given LoRA's adapters as they are stored, to merge them where it computes; see
    `weights.adapters.Base.whole`. Others are given whole models, merged on the CPU.
    """

    merges_adapters: bool


@runtime_checkable
class ReadsBase(Protocol):
    """An engine that merges adapters, and reads what they are merged into beside its work."""

    async def read_base(self, weights: StoredWeights) -> None:
        """Begin to read it, and wait for nothing. weights: a version that is not loaded, whole or of adapters."""


@runtime_checkable
class HoldsVersions(Protocol):
    """An engine in which requests can name the version that samples them; see `GenerateRequest.version`."""

    def holds(self, version: int) -> bool: ...

    async def hold(self, version: int, weights: Iterable[tuple[str, Tensor]] | None) -> None:
        """weights: None for those of the last update; no update may be under way."""

    def retain(self, versions: Collection[int]) -> None:
        """Forget all other versions: no request will name them."""


@runtime_checkable
class KnowsItsEnd(Protocol):
    """An engine that can end before its process does, which is then replaced; its requests are made again elsewhere."""

    @property
    def failure(self) -> str:
        """Why it will serve no request any more; empty while it works."""


@runtime_checkable
class Sleeps(Protocol):
    """An engine that gives its GPU's memory away for a while; the next update of the weights wakes it."""

    async def sleep(self) -> None:
        """Weights, keys and values are dropped. What runs or is asked for meanwhile waits, and is computed again."""


def check_request(request: GenerateRequest, *, vocab_size: int, max_model_len: int) -> None:
    """Raise ValueError for a request that no engine could serve to its end."""
    prompt_ids, max_tokens = request.prompt_ids, request.sampling.max_tokens
    if not prompt_ids:
        raise ValueError("prompt_ids is empty; give at least one token")
    if len(prompt_ids) + max_tokens > max_model_len:
        raise ValueError(
            f"a context of {len(prompt_ids)} tokens and max_tokens {max_tokens} exceed generator.max_model_len "
            f"{max_model_len}; request fewer tokens or raise it"
        )
    if min(prompt_ids) < 0 or max(prompt_ids) >= vocab_size:
        raise ValueError(
            f"prompt_ids lie in [{min(prompt_ids)}, {max(prompt_ids)}]; the vocabulary is [0, {vocab_size})"
        )
