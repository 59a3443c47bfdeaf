"""What a user may set about Docker sandboxes, under `sandbox.options` of a recipe."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from math import inf

from agentgym.errors import UserError
from agentgym_sandboxes.docker.endpoint import Tls, check_url
from agentgym_sandboxes.docker.requirements import Requirement, read_requirements
from agentgym_sandboxes.host.options import POSITIVE, check_ranges

MAX_PRELOAD = 64
TAKEN = frozenset(
    {"/", "/.agentgym", "/bin", "/dev", "/etc", "/lib", "/proc", "/sys", "/tmp", "/usr", "/work"}
)  # by a container itself
PROFILES = ("hardened", "task")
RANGES = {
    **{"pool_size": (0, inf), "slots": (1, 16), "max_sessions": (1, inf), "spare_sessions": (0, inf)},
    **{"session_disk_mib": (1, 4096), "images_ahead": (0, 100)},
    **dict.fromkeys(
        ("cpus", "max_uses", "max_age_s", "lease_timeout_s", "start_timeout_s", "starts_per_s", "engine_timeout_s",
         "engine_failures", "images_gb", "tasks_memory_mib", "tasks_cpus",
         "ping_every_s", "ping_timeout_s", "reap_every_s", "session_network_mib"),
        POSITIVE,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerConfig:
    """The defaults suit one machine."""

    engine: str | None = None
    """Where Docker listens: unix:///path, tcp://host:port or ssh://user@host; null looks where Docker's own command
    does."""
    engines: tuple[str, ...] = ()
    """Several engines that share the containers, the least loaded first; every one needs the image."""
    tls_ca: str | None = None
    """The PEM file of the authority, for tcp:// engines; null takes Docker's own variables."""
    tls_cert: str | None = None
    """The PEM file of the client's certificate, for tcp:// engines."""
    tls_key: str | None = None
    """The PEM file of the client's key, for tcp:// engines."""
    ssh_config: str | None = None
    """A file for OpenSSH in place of the user's, for ssh:// engines."""
    image: str | None = None
    """Another image with a python3; null is the one that `agentgym sandbox build` makes."""
    packages: tuple[str, ...] = ()
    """What our image holds besides Python, as pip takes it: numpy==2.3.1."""
    volumes: dict[str, str] = field(default_factory=dict)
    """Folders of this machine that every session has, read-only, by the path at which it has them: {/tools: my_tools}.
    Each is copied once to a volume of the engine; `agentgym sandbox clean --volumes` removes those not in use."""
    preload: tuple[str, ...] = ()
    """Modules that a container imports before its calls, which then have them at once."""
    runtime: str | None = None
    """Another OCI runtime, such as runsc; null is the engine's own."""
    pool_size: int = 0
    """Containers that serve calls; 0 is one a core of each engine, at most 4 on each."""
    spares: int | None = None
    """Containers that are ready beside them; null is a tenth of them, at least one."""
    slots: int = 4
    """Calls at a time in each container."""
    memory_mib: int = 512
    """Memory of one call, in MiB."""
    container_memory_mib: int = 1024
    """Memory of a container, in MiB."""
    cpus: float = 1.0
    """Processor cores of a container."""
    max_uses: int = 500
    """Calls after which a container is replaced."""
    max_age_s: float = 1800.0
    """Seconds after which a container is replaced."""
    lease_timeout_s: float = 120.0
    """Seconds that a call may wait for a container."""
    start_timeout_s: float = 60.0
    """Seconds that a container may take to start."""
    starts_per_s: float = 20.0
    """Containers that each engine may start in a second."""
    engine_timeout_s: float = 30.0
    """Seconds of one request to an engine."""
    engine_failures: int = 3
    """Failures in a row after which an engine is not used for a while."""
    ping_every_s: float = 5.0
    """Seconds between checks of whether a container answers."""
    ping_timeout_s: float = 5.0
    """Seconds within which it must answer."""
    reap_every_s: float = 60.0
    """Seconds between searches for what dead owners left behind."""
    session_image: str | None = None
    """The image of sessions whose task names none: any Linux image that the engine has, by name, id or digest; null is
    the one that calls run in."""
    session_profile: str = "hardened"
    """What contains sessions whose task does not say: hardened, or task: a writable root and the image's user
    (docs/security.md)."""
    public_network: str = "proxy"
    """What network "public" of a task is: proxy, which reaches every public host and no private one by http_proxy and
    https_proxy, or bridge, the engine's own network, from which this machine's neighbours can be reached, too."""
    images_gb: float | None = None
    """What images that were pulled or built for tasks may take on each engine, in GB; beyond it, those used longest ago
    are removed. Null is no bound."""
    images_ahead: int = 4
    """Images that are pulled or built before the sessions that come next ask for them."""
    tasks_memory_mib: int | None = None
    """Memory of all containers with profile task on an engine, in MiB; null is nine tenths of its host's."""
    tasks_cpus: float | None = None
    """Cores of all containers with profile task on an engine, by their tasks' limits; null is eight times its cores."""
    max_sessions: int = 16
    """Sessions at a time, each with a container of its own."""
    spare_sessions: int = 1
    """Warm containers for further sessions, once there was one."""
    session_disk_mib: int = 256
    """Space of a session's files, in MiB; it counts as the container's memory."""
    session_network_mib: int = 1024
    """MiB that a session with an allow list may send and receive."""
    allow_missing_limits: bool = False
    """Accept an engine that cannot limit memory or processes, or filter system calls."""
    mirror: str = "http://deb.debian.org/debian"
    """Where `agentgym sandbox build` gets Debian's packages."""

    def __post_init__(self) -> None:
        check_ranges(self, RANGES)
        if self.spares is not None and self.spares < 0:
            raise UserError(f"spares is {self.spares}; it must be 0 or more, or null for a tenth of the pool")
        if not 16 <= self.memory_mib <= self.container_memory_mib:
            raise UserError(
                f"memory_mib {self.memory_mib}, container_memory_mib {self.container_memory_mib}: a call needs "
                "at least 16 MiB, and its container at least as much"
            )
        if self.session_profile not in PROFILES:
            raise UserError(f"session_profile is {self.session_profile!r}; take one of {', '.join(PROFILES)}")
        if self.public_network not in ("proxy", "bridge"):
            raise UserError(f"public_network is {self.public_network!r}; take proxy or bridge")
        self._check_engines()
        self._check_packages()
        for at in self.volumes:
            if not at.startswith("/") or at != posixpath.normpath(at) or at in TAKEN:
                raise UserError(
                    f"volumes has {at!r}; give an absolute path, as /tools, and none of {', '.join(sorted(TAKEN))}"
                )

    @property
    def urls(self) -> tuple[str | None, ...]:
        """The engines that were named; one None when the usual places are to be looked into."""
        return self.engines or (self.engine,)

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        """The packages, in one order."""
        return read_requirements(self.packages)

    @property
    def tls(self) -> Tls | None:
        if self.tls_ca is None or self.tls_cert is None or self.tls_key is None:
            return None
        return Tls(ca=self.tls_ca, cert=self.tls_cert, key=self.tls_key)

    def _check_engines(self) -> None:
        if self.engine is not None and self.engines:
            raise UserError(f"engine is {self.engine!r} and engines is {list(self.engines)}; give one of the two")
        if len(set(self.engines)) < len(self.engines):
            raise UserError(f"engines is {list(self.engines)}; name each engine once")
        for url in self.urls:
            if url is not None:
                check_url(url)
        given = [name for name in ("tls_ca", "tls_cert", "tls_key") if getattr(self, name) is not None]
        if len(given) not in (0, 3):
            raise UserError(f"only {', '.join(given)} is given; TLS takes all of tls_ca, tls_cert and tls_key")

    def _check_packages(self) -> None:
        if self.requirements and self.image is not None:
            raise UserError(
                f"image is {self.image!r} and packages is {list(self.packages)}: an image of your own brings its "
                "packages itself, so install them where it is made. Or leave image out, for ours with the packages; "
                "`agentgym sandbox build --pull IMAGE@sha256:... --packages ...` makes ours of an image by digest."
            )
        for name in self.preload:
            if not all(part.isidentifier() for part in name.split(".")):
                raise UserError(f"preload has {name!r}; give names of modules, as numpy or scipy.stats")
        if len(self.preload) > MAX_PRELOAD:
            raise UserError(f"preload has {len(self.preload)} modules; allowed are {MAX_PRELOAD}")
