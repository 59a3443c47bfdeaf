"""Which sandbox a run uses, how long its calls are in flight, and what an episode records of them."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from traceback import walk_tb
from typing import Any, Self, TypeVar, cast

from agentgym.contracts import ContractError, check_made
from agentgym.env import Environment
from agentgym.errors import InfraError, UserError
from agentgym.hooks import PluginRegistry
from agentgym.plugin_errors import PluginError, blamed, plugin_error
from agentgym.rollout.activity import Activity
from agentgym.rollout.calls import PART
from agentgym.sandbox import (
    Capabilities,
    FileRefused,
    Machine,
    RunResult,
    RunStatus,
    Sandbox,
    SandboxBackend,
    SandboxOptions,
    SandboxPlugin,
    SandboxUnavailable,
    Session,
    Verdict,
)
from agentgym.types import Episode, SandboxSpec, SandboxTrace, Task

log = logging.getLogger(__name__)

ASK_DOCTOR = "`agentgym sandbox doctor` reports what each sandbox lacks."


def check_sandbox(name: str, options: SandboxOptions, registry: PluginRegistry) -> None:
    """Raises UserError for an unknown sandbox, and for options that it, or all that `auto` may take, refuse."""
    if name != "auto":
        guarded(registry.sandbox(name).create(options))
    else:
        _accepting(options, {k: p for k, p in registry.sandboxes().items() if p.auto_rank is not None})


async def choose_sandbox(
    name: str, options: SandboxOptions, tasks: Iterable[Task], registry: PluginRegistry, say: Callable[[str], None]
) -> SandboxBackend | None:
    """The backend, probed but not started; None when no task asks for one.

    `auto` takes the first by rank that is available and serves every task, an interpreter only where every task
    allows it. Raises UserError, with what to do, for options that the sandbox does not take, and when a named one
    can't serve the tasks or is unavailable.
    """
    specs = [task.sandbox for task in tasks if task.sandbox is not None]
    if not specs:
        return None
    if name == "auto":
        return await _choose_any(options, specs, registry, say)
    backend = guarded(registry.sandbox(name).create(options))
    _check_serves(backend, specs, options, registry)
    try:
        able = await _probed(backend)
    except SandboxUnavailable as error:
        raise UserError(f"sandbox {name!r} is unavailable: {error}") from error
    if _needs_grades(specs) and not able.grades:
        others = {k: p for k, p in registry.sandboxes().items() if p.auto_rank is not None and k != name}
        grading = [k for k, plugin in others.items() if await _can_grade(plugin, specs)]
        raise UserError(
            f"sandbox {name!r} runs code and judges no solutions, as these tasks ask for; take one of: "
            f"{', '.join(grading) or '(none is installed)'}"
        )
    return backend


async def make_images(backend: SandboxBackend, environment: Environment[Any], tasks: Iterable[Task]) -> set[str]:
    """Make the images that tasks bring, before any is played; the ids of those that the environment leaves out since.

    Raises UserError where it does not go on without them.
    """
    specs = {task.task_id: environment.specs(task) for task in tasks}
    unmade = await backend.make_images(dict.fromkeys(spec for several in specs.values() for spec in several))
    found = {name: [unmade[spec] for spec in several if spec in unmade] for name, several in specs.items()}
    faults = {name: whys[0] for name, whys in found.items() if whys}
    if faults:
        with blamed("environments", environment):
            environment.leave_out(faults)
    return {*faults}


def _needs_grades(specs: list[SandboxSpec]) -> bool:
    return any(spec.grades for spec in specs)


async def _probed(backend: SandboxBackend) -> Capabilities:
    """What it enforces here. Raises UserError for a backend that says otherwise than it does."""
    able = await backend.probe()
    if not isinstance(able, Capabilities):
        raise UserError(f"sandbox {backend.name!r}: `probe` returned {able!r:.80}; it has to return Capabilities")
    if able.grades and getattr(type(_unguarded(backend)), "grade", None) is SandboxBackend.grade:
        raise UserError(
            f"sandbox {backend.name!r} has no method `grade`, and its Capabilities say that it grades; set "
            "grades=False in what `probe` returns, or write `grade` by a grader of agentgym.grading"
        )
    return able


async def _can_grade(plugin: SandboxPlugin, specs: list[SandboxSpec]) -> bool:
    """Whether it grades, and serves these tasks. One that is unavailable here counts too."""
    backend = guarded(plugin.create({}))
    try:
        return _serves(backend, specs) and (await _probed(backend)).grades
    except SandboxUnavailable:
        return True
    except (UserError, PluginError):
        return False


async def _choose_any(
    options: SandboxOptions, specs: list[SandboxSpec], registry: PluginRegistry, say: Callable[[str], None]
) -> SandboxBackend:
    ranked = {
        name: plugin
        for name, plugin in registry.sandboxes().items()
        if plugin.auto_rank is not None
        and (not plugin.interpreter or all(name in spec.allow_interpreters for spec in specs))
    }
    accepted, refused = _accepting(options, ranked)
    contents = {key for name in accepted for key in ranked[name].contents if options.get(key)}
    owner, order = next(iter(accepted), ""), list(ranked)
    reasons: list[str] = []
    for name, plugin in ranked.items():
        if contents and name in refused:
            continue
        try:
            without_options = guarded(plugin.create({}))
            backend = accepted.get(name, without_options)
            if not _serves(without_options, specs):
                _check_serves(backend, specs, options, registry)
            able = await _probed(backend)
        except (SandboxUnavailable, UserError, PluginError) as error:
            if plugin.interpreter and isinstance(error, ContractError | PluginError):
                raise  # what the tasks allow by name is their own, and another would run them as something else
            reasons.append(f"{name}: {error}")
            continue
        if not able.isolated:
            reasons.append(f"{name}: it is not isolated here: {able.detail}")
            continue
        if _needs_grades(specs) and not able.grades:
            reasons.append(f"{name}: it runs code and judges no solutions, as these tasks ask for")
            continue
        if name in refused and order.index(name) < order.index(owner):
            raise refused[name]  # a healthy sandbox is not passed over for an option
        _check_serves(backend, specs, options, registry)
        if reasons:
            kind = ", an interpreter that these tasks allow" if plugin.interpreter else ""
            unused = f"; sandbox.options are for {owner} and are not used" if name in refused else ""
            say(f"sandbox: {name}{kind}, because {reasons[0].splitlines()[0]}{unused}")
        return backend
    if contents:
        keys = " and ".join(f"sandbox.options.{key}" for key in sorted(contents))
        reasons.append(f"others were not tried: they do not take {keys}")
    setup = next((plugin.setup for plugin in ranked.values() if plugin.setup), ASK_DOCTOR)
    raise UserError(
        "these tasks run code, and no sandbox is available:\n  "
        + "\n  ".join(reasons or [f"none that is installed may be chosen: {sorted(registry.sandboxes())}"])
        + f"\n{setup}"
    )


def _accepting(
    options: SandboxOptions, plugins: Mapping[str, SandboxPlugin]
) -> tuple[dict[str, SandboxBackend], dict[str, UserError]]:
    """The sandboxes that take the options, and why the others don't. Raises UserError when none does."""
    accepted: dict[str, SandboxBackend] = {}
    refused: dict[str, UserError] = {}
    for name, plugin in plugins.items():
        try:
            accepted[name] = guarded(plugin.create(options))
        except UserError as error:
            refused[name] = error
    if refused and not accepted:
        raise next(iter(refused.values()))
    return accepted, refused


def _serves(backend: SandboxBackend, specs: list[SandboxSpec]) -> bool:
    return all(backend.supports(spec) for spec in specs)


def _check_serves(
    backend: SandboxBackend, specs: list[SandboxSpec], options: SandboxOptions, registry: PluginRegistry
) -> None:
    spec = next((spec for spec in specs if not backend.supports(spec)), None)
    if spec is None:
        return
    others = {k: p for k, p in registry.sandboxes().items() if p.auto_rank is not None and k != backend.name}
    able = [name for name, plugin in others.items() if _serves(guarded(plugin.create({})), specs)]
    given = f" with the options {options}" if options else ""
    raise UserError(
        f"sandbox {backend.name!r}{given} can't serve these tasks, which need {_needs(spec, backend)}; "
        f"{'change the options, or ' if options else ''}take one of: {', '.join(able) or '(none is installed)'}"
    )


def _needs(spec: SandboxSpec, backend: SandboxBackend) -> str:
    needs = ["a session"] if spec.session else []
    needs += [f"the image {spec.image!r}"] if spec.image is not None else []
    if backend.name not in spec.allow_interpreters:
        needs.append("Python" if spec.allow_interpreters else "all of Python")
    return ", ".join([*needs, f"{spec.memory_mib} MiB"])


@asynccontextmanager
async def leased_session(sandbox: Sandbox | None, task: Task, *, wanted: bool = False) -> AsyncIterator[Session | None]:
    """The session that a task's spec asks for, as long as its episode lasts; else None.

    wanted: one is leased for every task that runs code.
    """
    spec = task.sandbox
    if sandbox is None or spec is None or not (spec.session or wanted):
        yield None
        return
    async with sandbox.session_for(spec) as session:
        check_made(_unguarded(session), Session, f"a session of sandbox {sandbox.name!r}")
        yield session


S = TypeVar("S", bound=Sandbox)


def guarded(sandbox: S) -> S:
    """The sandbox; an error that it raises names it: a PluginError, or the `source` of an InfraError."""
    return sandbox if isinstance(sandbox, _Guarded) else cast(S, _Guarded(sandbox, sandbox.name))


def watched(sandbox: Sandbox, activity: Activity) -> Sandbox:
    """The sandbox, guarded; its calls, and those of its sessions, count as activity of the kind `sandbox`."""
    return cast(Sandbox, _Guarded(_unguarded(sandbox), sandbox.name, activity))


def recorded(sandbox: Sandbox, episode: Episode) -> Sandbox:
    """The sandbox as it was; each call of it and of its sessions is added to the episode's `sandbox_calls`."""
    activity = sandbox._activity if isinstance(sandbox, _Guarded) else None
    return cast(Sandbox, _Guarded(_unguarded(sandbox), sandbox.name, activity, episode))


def _unguarded(sandbox: object) -> object:
    return sandbox._inner if isinstance(sandbox, _Guarded) else sandbox


_RETURNED: Mapping[str, type] = {"run": RunResult, "exec": RunResult, "grade": Verdict, "read": bytes}


class _Guarded:
    """A sandbox or a session. What its contract lets it raise, passes: UserError, InfraError, FileRefused."""

    def __init__(
        self, inner: Any, sandbox: str, activity: Activity | None = None, episode: Episode | None = None
    ) -> None:
        self._inner, self._sandbox, self._activity, self._episode = inner, sandbox, activity, episode

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value

        def call(*args: object, **kwargs: object) -> object:
            with self._named(_is_callers):
                result = value(*args, **kwargs)
            return self._awaited(name, result) if inspect.isawaitable(result) else result

        return call

    async def _awaited(self, name: str, result: Awaitable[object]) -> object:
        began = time.perf_counter()
        try:
            with self._activity.doing("sandbox") if self._activity else nullcontext(), self._named():
                found, wanted = await result, _RETURNED.get(name)
                if wanted is not None and not isinstance(found, wanted):
                    owner = type(self._inner).__qualname__
                    raise TypeError(f"`{name}` of {owner} returned {found!r:.80}; it has to return a {wanted.__name__}")
        except BaseException as error:
            self._record(name, began, type(error).__name__, raised=True)
            raise
        self._record(name, began, _outcome(found))
        return self if found is self._inner else found

    def _record(self, name: str, began: float, outcome: str, *, raised: bool = False) -> None:
        if (episode := self._episode) is not None:
            seconds, turn = time.perf_counter() - began, len(episode.turns)
            trace = SandboxTrace(name=name, outcome=outcome, seconds=seconds, turn=turn, part=PART.get(), raised=raised)
            episode.sandbox_calls.append(trace)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def machine(self) -> Machine:
        return cast(Machine, _Guarded(self._inner.machine, self._sandbox, self._activity, self._episode))

    def session(self, *, network: tuple[str, ...] = ()) -> AbstractAsyncContextManager[Session]:
        return self._held(lambda: self._inner.session(network=network))

    def session_for(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Session]:
        return self._held(lambda: self._inner.session_for(spec))

    @asynccontextmanager
    async def _held(self, lease: Callable[[], AbstractAsyncContextManager[Session]]) -> AsyncIterator[Session]:
        with self._named():
            manager = lease()
            session = await manager.__aenter__()
        raised: BaseException | None = None
        try:
            yield cast(Session, _Guarded(session, self._sandbox, self._activity, self._episode))
        except BaseException as error:
            raised = error
        with self._named(lambda error: error is raised):
            await manager.__aexit__(type(raised) if raised else None, raised, raised.__traceback__ if raised else None)
        if raised is not None:
            raise raised

    @contextmanager
    def _named(self, passes: Callable[[BaseException], bool] = lambda error: False) -> Iterator[None]:
        """passes: whether an error is not the sandbox's."""
        try:
            yield
        except (UserError, FileRefused):
            raise
        except (Exception, SystemExit) as error:  # plugin code: anything may come
            if passes(error):
                raise
            if not isinstance(error, InfraError):
                raise plugin_error("sandbox", self._inner, error, self._sandbox) from error
            error.source = error.source or f"sandbox:{self._sandbox}"
            raise


def _outcome(found: object) -> str:
    if isinstance(found, RunResult):
        return str(found.status)
    if isinstance(found, Verdict):
        return str(found.status) if found.status is not RunStatus.OK else "passed" if found.passed else "failed"
    return "ok"


def _is_callers(error: BaseException) -> bool:
    """Whether the call itself failed: what the methods take was checked when the sandbox was made."""
    return isinstance(error, TypeError) and len([*walk_tb(error.__traceback__)]) == 2  # `_named` and `call`
