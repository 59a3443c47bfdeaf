"""Where an actor runs: processes, GPUs, threads and their environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from agentgym.actors.gpus import gpu_names, left_to
from agentgym.errors import UserError

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class OptionValues(TypedDict, total=False):
    """What `ServiceActor.options` takes; see ActorOptions."""

    procs: int
    hosts: int | str | Sequence[str] | None
    with_gpus: bool
    gpus: tuple[int, ...]
    num_replicas: int
    mesh_name: str | None
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorOptions:
    """Where an actor runs."""

    procs: int = 1
    """Processes of one replica."""
    hosts: int | str | Sequence[str] | None = None
    """Where the processes of one replica are: on so many hosts, an equal number on each; on those of these names; or
    the part of the run by which a recipe's `hosts` places them, which is trainer, reference, generator or worker.
    None: on any one."""
    with_gpus: bool = False
    """Let the processes see GPUs; False hides every one."""
    gpus: tuple[int, ...] = ()
    """Numbers of GPUs in this process: one for each process, or with share_gpus all of a replica's; empty leaves what
    it sees."""
    share_gpus: bool = False
    """Show all GPUs of a replica to each of its processes."""
    peer_gpus: tuple[int, ...] = ()
    """GPUs that a process sees after its own, to copy from them."""
    num_replicas: int = 1
    """Replicas of a service."""
    mesh_name: str | None = None
    """The name of the processes; None is made of the class."""
    threads: int = 1
    """Threads of torch in each process."""
    environment_by_rank: tuple[Mapping[str, str], ...] = ()
    """More environment variables, one mapping for each process."""
    torchrun: bool = False
    """Set the variables that torchrun would set."""
    gpus_per_process: int = 1
    """GPUs of each process on another host, which gives them out itself."""
    logged: bool = True
    """Write the processes' output to files."""
    imports: tuple[str, ...] = ()
    """Modules that each process imports first."""
    start_timeout_s: float = 300.0
    """Seconds that the processes may take to start."""

    def __post_init__(self) -> None:
        if min(self.procs, self.num_replicas, self.threads) < 1:
            raise UserError(
                f"procs {self.procs}, num_replicas {self.num_replicas} and threads {self.threads} must be at least 1"
            )
        if "/" in (self.mesh_name or ""):
            raise UserError(f"mesh_name is {self.mesh_name!r}; files are named after it, so give one without a slash")
        if isinstance(self.hosts, int) and (self.hosts < 1 or self.procs % self.hosts):
            raise UserError(
                f"hosts is {self.hosts} and procs {self.procs}: each host gets an equal number of the processes; give "
                "procs that the hosts divide"
            )
        if self.gpus and len(self.gpus) < self.procs * self.num_replicas:
            raise UserError(
                f"gpus {self.gpus} are too few for {self.num_replicas} replicas of {self.procs} processes; "
                "give one for each process, or none"
            )
        if self.environment_by_rank and len(self.environment_by_rank) != self.procs:
            raise UserError(f"{len(self.environment_by_rank)} environments for {self.procs} processes")

    def environment(self, rank: int, local_rank: int | None = None, gpus: tuple[str, ...] = ()) -> dict[str, str]:
        """The environment variables of the process with this rank.

        local_rank: on its host; None where all are on one. gpus: of its host, for this process, as CUDA_VISIBLE_DEVICES
        calls them there; empty: the options'. Raises UserError for a GPU that this process does not see.
        """
        variables = dict.fromkeys(THREAD_VARIABLES, str(self.threads))
        variables["TOKENIZERS_PARALLELISM"] = "false"
        if not self.with_gpus:
            variables |= left_to(())
        elif gpus:
            variables |= left_to(gpus)
        elif self.gpus:
            own = self.gpus if self.share_gpus or self.procs == 1 else self.gpus[rank : rank + 1]
            variables |= left_to(gpu_names(dict.fromkeys((*own, *self.peer_gpus))))
        if self.torchrun:
            local = rank if local_rank is None else local_rank
            variables |= {"RANK": str(rank), "WORLD_SIZE": str(self.procs), "LOCAL_RANK": str(local)}
        if self.environment_by_rank:
            variables.update(self.environment_by_rank[rank])
        return variables

    def for_replica(self, index: int) -> ActorOptions:
        """The options of one replica: its share of the GPUs."""
        share = len(self.gpus) // self.num_replicas
        return replace(self, num_replicas=1, gpus=self.gpus[index * share : (index + 1) * share])
