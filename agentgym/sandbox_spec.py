"""What a task needs to run code: a sandbox for its calls, a session, or a machine of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """What a task needs to run code. grades: it has solutions judged.

    allow_interpreters: sandboxes that are not a full CPython but suffice for this task.
    session: its episodes lease a sandbox of their own. network: the only hosts that such a session may reach, or
    "public" for every host of the public internet.
    image: of a session: any Linux image, by name, id or digest, whether it has Python or not; None takes the recipe's.
    profile: what contains a session: "hardened", or "task" for a container that is the task's own, with a writable
    root and the image's user and work folder; empty takes the recipe's. docs/security.md has what each promises.

    The rest needs profile "task". context: a folder of this machine that the image is built from, in place of `image`;
    dockerfile: the file there that says how. build_timeout_s: seconds that building or pulling it may take.
    workdir, user: in place of the image's; env: NAME=VALUE, besides its own. cpus: cores; 0 takes the recipe's.
    disk_mib: what its files may add to the image where they are frozen; 0: no bound.
    beside: for an episode that has a session and waits for this one, as for the tests of what it left: it is not among
    the sessions that are bounded, and one of them starts even where all memory of tasks is taken."""

    image: str | None = None
    allow_interpreters: tuple[str, ...] = ()
    network: tuple[str, ...] | Literal["public"] = ()
    memory_mib: int = 512
    session: bool = False
    grades: bool = False
    profile: Literal["", "hardened", "task"] = ""
    context: str | None = None
    dockerfile: str = "Dockerfile"
    build_timeout_s: float = 1200.0
    workdir: str = ""
    user: str = ""
    env: tuple[str, ...] = ()
    cpus: float = 0.0
    disk_mib: int = 0
    beside: bool = False

    def __post_init__(self) -> None:
        if self.profile not in ("", "hardened", "task"):
            raise ValueError(f"profile is {self.profile!r}; take 'hardened' or 'task', or leave it out")
        if self.profile and not self.session:
            raise ValueError(f"profile {self.profile!r} needs session=True: one-shot calls are always hardened")
        if isinstance(self.network, str) and self.network != "public":
            raise ValueError(f"network is {self.network!r}; give a tuple of hosts, or 'public'")
        if self.network and not self.session:
            raise ValueError(f"network {self.network} needs session=True: one-shot calls have no network at all")
        self._check_machine()

    def _check_machine(self) -> None:
        names = ("context", "workdir", "user", "env", "cpus", "disk_mib", "beside")
        given = [name for name in names if getattr(self, name)]
        if given and self.profile != "task":
            raise ValueError(f"{', '.join(given)} needs profile='task': in other sessions they are ours")
        if self.context and self.image:
            raise ValueError(f"image is {self.image!r} and context is {self.context!r}; give one of the two")
        for pair in self.env:
            if not pair.partition("=")[0] or "=" not in pair or "\0" in pair:
                raise ValueError(f"env has {pair!r}; give NAME=VALUE")
        if self.workdir and not self.workdir.startswith("/"):
            raise ValueError(f"workdir is {self.workdir!r}; give an absolute path")
        if self.cpus < 0 or self.disk_mib < 0 or self.memory_mib < 1 or self.build_timeout_s <= 0:
            raise ValueError(
                f"cpus {self.cpus}, disk_mib {self.disk_mib}, memory_mib {self.memory_mib}, build_timeout_s "
                f"{self.build_timeout_s}: cpus and disk_mib are 0 or more, the others above 0"
            )
