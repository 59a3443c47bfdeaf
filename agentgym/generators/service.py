"""The generators of a run behind one address, all at the same weights."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import statistics
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from agentgym.actors.gate import Gate
from agentgym.actors.options import ActorOptions
from agentgym.actors.process_group import ProcessDied, ProcessGroup
from agentgym.actors.remote import Routes
from agentgym.actors.runtime import Runtime, current_runtime
from agentgym.actors.scaling import ScalingSettings, keep_scaled
from agentgym.actors.service import Service, Session
from agentgym.actors.settings import ServiceSettings
from agentgym.errors import InfraError
from agentgym.generators.actor import Generator
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.engine import NotLoaded
from agentgym.generators.metrics import summed
from agentgym.types import Completion, GenerateRequest
from agentgym.weights.store import OtherBase, WeightStore

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym.families.quantized import Quantize

log = logging.getLogger(__name__)

SLOTS = "generator/slots"
ASKED = 8  # replicas a second, for the mean of their slots
ATTEMPTS = 4  # to read a version
RETRY_S = 0.5

Revive = Callable[[], Awaitable[None]]


def as_published(weights: Iterable[tuple[str, Tensor]], dtype: str) -> Iterator[tuple[str, Tensor]]:
    """Weights as a trainer publishes them, in the generators' type."""
    import torch

    return ((name, tensor.to(getattr(torch, dtype))) for name, tensor in weights)


class PublisherLost(InfraError):
    """The process whose memory held the weights is gone for good."""


class GeneratorService:
    """The generators as the controller sees them.

    A replica serves only with the current weights: one that can't load them, or that is restarted
    after a death, gets no request until it holds them. While an update is under way a replica serves with those that it
    has; where the new ones can't be read since their publisher is away, the update waits for it.
    """

    def __init__(
        self,
        *,
        config: GeneratorConfig,
        store: WeightStore,
        model_path: str,
        runtime: Runtime | None = None,
        settings: ServiceSettings | None = None,
        peer_gpus: tuple[int, ...] = (),
        revive: Revive | None = None,
        folder_is_first: bool = True,
    ) -> None:
        """model_path: a Hugging Face folder; folder_is_first: whether its weights are version 0. settings: overrides
        what follows from config.

        peer_gpus: those whose memory holds the store's weights, if any. revive: called where a version can't be read;
        returns once the process whose memory it is in answers and has published it again. None where it is in no
        process's memory.
        """
        self._config = config
        self._store = store
        self._model_path, self._folder_is_first = model_path, folder_is_first
        self._runtime = runtime or current_runtime()
        self._settings = settings or service_settings(config)
        self._options = ActorOptions(
            num_replicas=config.most_replicas,
            hosts="generator",
            gpus_per_process=config.engine.gpus_per_replica,
            with_gpus=config.device != "cpu",
            gpus=config.gpus,
            peer_gpus=peer_gpus,
            threads=config.threads,
            imports=store.process_imports,
        )
        self._current = CurrentWeights(config.update_timeout_s, revive)
        self._service: Service[Generator] | None = None
        self._updating = asyncio.Lock()
        self._awake = Gate()  # when replicas may start: while they sleep their memory is the trainer's
        self._call_ids = itertools.count()
        self._seen: dict[str, dict[str, float]] = {}  # last metrics of each process group
        self._gone: Counter[str] = Counter()  # the sum of those that ended
        self._next_asked = 0
        self._scaling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the replicas; from then on they grow and shrink. Raises what an engine's start raised."""
        config = self._config
        service = Service(
            "generator",
            self._launch,
            num_replicas=config.replicas,
            max_replicas=config.most_replicas,
            settings=self._settings,
            admit=self._current.admit,
            starts=self._awake,
        )
        await service.start()
        self._service = service
        if config.fewest_replicas < config.most_replicas:
            scaling = ScalingSettings(
                min_replicas=config.fewest_replicas,
                max_replicas=config.most_replicas,
                grow_after_s=config.grow_after_s,
                shrink_after_s=config.shrink_after_s,
                look_every_s=min(1.0, config.grow_after_s / 4, config.shrink_after_s / 4),
            )
            scaled = keep_scaled(
                service, scaling, slots=self._slots, holds=lambda replica: self._current.is_held_by(replica.group)
            )
            self._scaling = asyncio.create_task(scaled, name="generator scaling")
            self._scaling.add_done_callback(_report_end)

    @property
    def version(self) -> int:
        """The version that new tokens are sampled from; during an update, the one that is being loaded."""
        if self._current.version is None:
            raise InfraError("the generators have not started")
        return self._current.version

    async def generate(self, request: GenerateRequest, *, session: Session[Generator] | None = None) -> Completion:
        """session: stay with its replica. Raises ValueError for a request that can't be served.

        Cancelling the call frees its place.
        """
        return await sampled_by(
            self._started(), request, f"call-{next(self._call_ids)}", self._settings, session=session
        )

    def routes(self) -> Routes:
        """The replicas that are up, for processes that call them directly; see `RemoteGenerators`."""
        return Routes.of(self._started())

    async def changed(self) -> None:
        """Returns once a replica may have come up or gone down. Raises InfraError when the service has failed."""
        await self._started().next_change()

    async def generate_everywhere(self, request: GenerateRequest) -> list[Completion]:
        """The answer of each replica."""
        return await self._started().fanout(Generator.generate, request, f"call-{next(self._call_ids)}")

    def new_session(self) -> Session[Generator]:
        """Opens a session: its requests stay with one replica, and move only if it dies."""
        return Session(self._started())

    async def update_weights(self, version: int) -> None:
        """Load a version from the store into every live replica; requests continue meanwhile.

        A replica that can't load it is replaced. Raises KeyError when the store has no such version, OtherBase for
        adapters of another model than the generators', PublisherLost where the weights were lost and stay so.
        """
        self._started()
        async with self._updating:
            held = await self._store.versions()
            if version not in held and await self._current.revived():
                held = await self._store.versions()
            if version not in held:
                raise KeyError(f"no weights of version {version} to update to; the store holds {held}")
            self._current.version = version
            groups = self._groups_up()
            what = f"the update to version {version}"
            await asyncio.gather(*(self._or_give_up(one, self._current.load(one), what) for one in groups))
            self._awake.open()

    async def load_folder(self, version: int, folder: Path) -> None:
        """Serve the weights of a Hugging Face folder from now on, under a version that the store does not hold."""
        from agentgym.models.safetensors import read_folder  # torch, from here on

        await self._store.put(version, as_published(read_folder(folder), self._config.dtype))
        await self.update_weights(version)

    async def load_quantized(self, scheme: Quantize, base_dtype: str) -> None:
        """Serve, as version 0, what the model's folder has once its matrices are quantized and rounded to base_dtype.

        Replicas do that by themselves, as with a trainer's version whose adapters are still zero.
        """
        import torch

        from agentgym.weights.adapters import NOTE, AdapterNote

        note = AdapterNote(scale=0.0, base_dtype=base_dtype, dtype=self._config.dtype, base="", quantize=scheme)
        await self._store.put(0, [(NOTE, note.to_tensor(torch.device("cpu")))])
        await self.update_weights(0)

    async def sleep(self) -> None:
        """Every live replica gives its GPU's memory away until the next `update_weights`; requests wait meanwhile.

        One that is starting is waited for. One that does not go to sleep is replaced, after that update.
        """
        async with self._updating:
            await self._awake.close()
            groups = self._groups_up()
            await asyncio.gather(*(self._put_to_sleep(group) for group in groups))

    def get_metrics(self) -> dict[str, float]:
        """The metrics of the service alone, without asking the replicas."""
        return {f"generator/{name}": value for name, value in self._started().get_metrics().items()}

    async def metrics(self) -> dict[str, float]:
        """The engines' metrics, as `summed` does it, and the service's own."""
        service = self._started()
        live = await self._ask_metrics(self._groups_up())
        total = summed({"": self._gone, **self._seen}, live)
        slots = total.setdefault(SLOTS, float(len(live) * self._config.max_batch))
        total["generator/idle_share"] = max(0.0, 1.0 - service.demand / slots) if slots else 0.0
        return total | self.get_metrics()

    async def _ask_metrics(self, groups: Sequence[ProcessGroup[Generator]]) -> set[str]:
        """Get what these say of themselves, and forget those that ended. Returns the names of those that answered."""
        calls = (group.call_one(Generator.metrics, timeout_s=self._config.probe_timeout_s) for group in groups)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        up = {group.name for group in self._groups_up()}
        for name in self._seen.keys() - up:
            self._gone.update(self._seen.pop(name))
        live: set[str] = set()
        for group, answer in zip(groups, answers, strict=True):
            if isinstance(answer, InfraError) or group.name not in up:
                continue  # dead or too busy to answer; its last figures are used
            if isinstance(answer, BaseException):
                raise answer
            live.add(group.name)
            self._seen[group.name] = answer
        return live

    def pids(self) -> list[int]:
        """The process ids of the replicas that are up."""
        return self._started().pids()

    async def close(self) -> None:
        if self._scaling is not None:
            self._scaling.cancel()
            await asyncio.gather(self._scaling, return_exceptions=True)
        if self._service is not None:
            await self._service.close()

    def _launch(self, index: int, name: str) -> ProcessGroup[Generator]:
        options = self._options.for_replica(index)
        arguments = (self._config, self._model_path, self._store, self._folder_is_first)
        return Generator.launch(name, *arguments, options=options, runtime=self._runtime)

    async def _put_to_sleep(self, group: ProcessGroup[Generator]) -> None:
        await self._or_give_up(
            group, group.call_one(Generator.sleep, timeout_s=self._config.update_timeout_s), "giving its memory away"
        )

    async def _or_give_up(self, group: ProcessGroup[Generator], call: Awaitable[object], what: str) -> None:
        """Await the call of one replica; one that fails at it is replaced."""
        try:
            await call
        except ProcessDied:
            return  # its supervisor restarts it with the current weights
        except (OtherBase, PublisherLost):  # a replacement would have the same
            raise
        except Exception as error:
            log.warning("%s: %s failed: %s", group.name, what, error)
            group.give_up(f"{what} failed: {type(error).__name__}: {error}")

    async def _slots(self) -> float:
        """Requests that a replica works on at a time, in the mean; before one has said so, as many as it may.

        A few replicas are asked each time, in turn, and none while there is no request.
        """
        groups = self._groups_up()
        if self._started().demand:
            first = self._next_asked % max(1, len(groups))
            self._next_asked = first + ASKED
            await self._ask_metrics([*groups[first:], *groups[:first]][:ASKED])
        said = [figures[SLOTS] for figures in self._seen.values() if SLOTS in figures]
        return max(1.0, statistics.fmean(said)) if said else float(self._config.max_batch)

    def _groups_up(self) -> list[ProcessGroup[Generator]]:
        return [replica.group for replica in self._started().replicas if replica.up]

    def _started(self) -> Service[Generator]:
        if self._service is None:
            raise InfraError("the generators have not started; await start() first")
        return self._service


async def sampled_by(
    service: Service[Generator],
    request: GenerateRequest,
    call_id: str,
    settings: ServiceSettings,
    *,
    session: Session[Generator] | None = None,
) -> Completion:
    """The answer of one replica. call_id: no other call to any of them has it."""

    def abandon(group: ProcessGroup[Generator]) -> None:
        group.broadcast(Generator.cancel, call_id)

    limit_s = None if request.time_s == math.inf else request.time_s + settings.request_timeout_s
    return await service.route(
        Generator.generate, request, call_id, timeout_s=limit_s, abandon=abandon, session=session
    )


class CurrentWeights:
    """Admits a replica once it holds the current version. The first replica's own version is the first one."""

    def __init__(self, update_timeout_s: float, revive: Revive | None = None) -> None:
        self.version: int | None = None
        self._update_timeout_s = update_timeout_s
        self._revive = revive
        self._held: WeakKeyDictionary[ProcessGroup[Generator], int] = WeakKeyDictionary()

    async def admit(self, group: ProcessGroup[Generator]) -> None:
        while not self.is_held_by(group):
            await self.load(group)

    def is_held_by(self, group: ProcessGroup[Generator]) -> bool:
        return self.version is not None and self._held.get(group) == self.version

    async def load(self, group: ProcessGroup[Generator]) -> None:
        """The current version, again where it can't be read, each time once its publisher is there.

        Raises PublisherLost where it does not come back, and the last NotLoaded.
        """
        for _ in range(ATTEMPTS - 1):
            try:
                return await self._load_once(group)
            except NotLoaded as error:
                log.warning("%s keeps its weights and tries again: %s", group.name, error)
            await asyncio.sleep(RETRY_S)
            await self.revived()
        await self._load_once(group)

    async def revived(self) -> bool:
        """False where weights are in no process's memory. Raises PublisherLost where that does not come back."""
        if self._revive is None:
            return False
        try:
            await self._revive()
        except Exception as error:
            raise PublisherLost(f"weights are lost with the process that published them: {error}") from error
        return True

    async def _load_once(self, group: ProcessGroup[Generator]) -> None:
        if self.version is None:
            own = await group.call_one(Generator.get_version, timeout_s=self._update_timeout_s)
            self._held[group] = own
            if self.version is None:
                self.version = own
            return
        self._held[group] = await group.call_one(
            Generator.update_weights, self.version, timeout_s=self._update_timeout_s
        )


def _report_end(scaling: asyncio.Task[None]) -> None:
    if not scaling.cancelled() and (error := scaling.exception()):
        log.warning("the number of generator replicas stays as it is now: %s: %s", type(error).__name__, error)


def service_settings(config: GeneratorConfig) -> ServiceSettings:
    return ServiceSettings(
        start_timeout_s=config.start_timeout_s,
        probe_every_s=config.probe_every_s,
        probe_timeout_s=config.probe_timeout_s,
        max_respawns=config.max_respawns,
        max_waiting=config.max_waiting,
        min_replicas=config.fewest_replicas,
    )
