"""Measures every sandbox that is available here, and raw baselines in the same run, against stated targets.

    python benchmarks/sandbox.py                 measures; writes benchmarks/measured/sandbox.json
    python benchmarks/sandbox.py --markdown      also prints the tables of docs/results.md
    python benchmarks/sandbox.py --quick --anyway --out /tmp/sandbox.json

All methods of running the same program take turns in rounds, and every answer is checked. It refuses to start on a
machine that is not idle; `--anyway` measures there too, but the figures are not claimed. Exit code 0: all targets
are met; 1: one is missed; 3: nothing can be claimed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import docker

from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.sandbox import Capabilities, SandboxBackend, SandboxUnavailable
from agentgym_sandboxes.audit.bench import (
    CALL,
    CONTAINER_START,
    GRADE_ASSERTS,
    GRADE_CALLS,
    PRINTED,
    PROGRAM,
    QUICK,
    START,
    BenchPlan,
    Growth,
    backend_ways,
    measure_growth,
    measure_sessions,
    measure_starts,
)
from agentgym_sandboxes.audit.machine import Load, Machine, describe_machine, measure_load
from agentgym_sandboxes.audit.timing import Timing, Way, measure

OUT = Path(__file__).parent / "measured" / "sandbox.json"
LONG = BenchPlan(episodes=1000, starts=7, load_s=5.0)
SANDBOXES = ("docker", "bubblewrap", "monty")
NOT_CLAIMED = 3
EXEC_SDK, EXEC_CLI = "docker exec, SDK", "docker exec, command line"
RUN_SDK, PLAIN = "docker run, SDK", "plain subprocess"
LABEL = "agentgym-benchmark"
HELD = ("memory_mib", "descriptors", "threads", "children", "containers")


class Baselines:
    """Use it as a context manager: it keeps one plain container of the image, which runs only `sleep`."""

    def __init__(self, image: str, at_once: int) -> None:
        self._image = image
        self._name = f"{LABEL}-{uuid.uuid4().hex[:8]}"
        self._client: Any = docker.APIClient(version="auto", timeout=60, num_pools=at_once + 2)
        # Without a network, like ours: setting one up takes longer than everything else.
        host = self._client.create_host_config(network_mode="none")
        self._settings: dict[str, Any] = {"labels": {LABEL: "1"}, "host_config": host}
        self._threads = ThreadPoolExecutor(max_workers=at_once)

    async def __aenter__(self) -> Self:
        await self._in_thread(self._start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._in_thread(lambda: self._client.remove_container(self._name, force=True))
        self._threads.shutdown()
        self._client.close()

    def ways(self) -> list[Way]:
        return [
            Way(name=EXEC_SDK, call=lambda: self._in_thread(self._exec), effort=5),
            Way(name=EXEC_CLI, call=self._exec_by_command, effort=5),
            Way(name=RUN_SDK, call=lambda: self._in_thread(self._run), effort=20),
            Way(name=PLAIN, call=self._plain, effort=2),
        ]

    def _start(self) -> None:
        self._client.create_container(self._image, command=["sleep", "infinity"], name=self._name, **self._settings)
        try:
            self._client.start(self._name)
        except BaseException:
            self._client.remove_container(self._name, force=True)
            raise

    def _exec(self) -> None:
        made = self._client.exec_create(self._name, ["python3", "-c", PROGRAM])
        output, errors = self._client.exec_start(made["Id"], demux=True)
        exit_code = self._client.exec_inspect(made["Id"])["ExitCode"]
        _check(exit_code, output, errors)

    async def _exec_by_command(self) -> None:
        await _process("docker", "exec", self._name, "python3", "-c", PROGRAM)

    def _run(self) -> None:
        """Create, start, wait, read, remove: the steps of `docker run --rm`."""
        made = self._client.create_container(self._image, command=["python3", "-c", PROGRAM], **self._settings)
        try:
            self._client.start(made["Id"])
            exit_code = self._client.wait(made["Id"])["StatusCode"]
            output = self._client.logs(made["Id"], stdout=True, stderr=False)
        finally:
            self._client.remove_container(made["Id"], force=True)
        _check(exit_code, output, b"")

    async def _plain(self) -> None:
        await _process(sys.executable, "-c", PROGRAM)

    async def _in_thread(self, function: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, function)


async def _process(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    _check(process.returncode, output, errors)


def _check(exit_code: int | None, output: bytes | None, errors: bytes | None) -> None:
    if exit_code != 0 or output != PRINTED.encode():
        raise RuntimeError(f"a baseline answered {output!r}, {errors!r}, exit code {exit_code}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A figure of the Docker sandbox and its limit, which it must not exceed; at_least: must reach."""

    what: str
    measured: float
    limit: float
    unit: str
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    def __str__(self) -> str:
        side = "at least" if self.at_least else "at most"
        return f"{self.what}: {self.measured:.2f} {self.unit}, {side} {self.limit:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """One run. timings of a sandbox are named `<sandbox>: <what>`."""

    machine: Machine
    load: tuple[Load, Load]
    sandboxes: dict[str, Capabilities]
    left_out: dict[str, str]
    timings: tuple[Timing, ...]
    growth: dict[str, Growth]
    plan: BenchPlan

    @property
    def claimed(self) -> bool:
        return all(load.is_idle for load in self.load)

    def timing(self, name: str) -> Timing:
        return next(timing for timing in self.timings if timing.name == name)

    def targets(self) -> list[Target]:
        call, raw = self.timing(f"docker: {CALL}"), self.timing(EXEC_SDK)
        names = [timing.name for timing in self.timings]
        start = next(name for name in (f"docker: {CONTAINER_START}", f"docker: {START}") if name in names)
        assert call.per_s and raw.per_s
        at_once = f"with {self.plan.timing.at_once} at once"
        grades = [
            Target(what=f"{name}, p50", measured=self.timing(f"docker: {name}").p50_ms, limit=15, unit="ms")
            for name in (GRADE_CALLS, GRADE_ASSERTS)
        ]
        return [
            Target(what="call, p50", measured=call.p50_ms, limit=5, unit="ms"),
            Target(what="call, p95", measured=call.p95_ms, limit=15, unit="ms"),
            Target(what=f"calls {at_once}", measured=call.per_s, limit=200, unit="a second", at_least=True),
            Target(
                what=f"calls {at_once} against docker exec",
                measured=call.per_s / raw.per_s,
                limit=8,
                unit="times as many",
                at_least=True,
            ),
            *grades,
            Target(what="start of a container, p50", measured=self.timing(start).p50_ms, limit=400, unit="ms"),
        ]


def tables(results: Results) -> str:
    """Markdown for docs/results.md."""
    machine = results.machine
    about = f"{machine.cores} cores ({machine.cpu}), {machine.memory_gib:.0f} GiB, Linux {machine.kernel}"
    engines = "; ".join(able.detail for able in results.sandboxes.values())
    parts = [
        f"Machine: {about}, Python {machine.python}. {engines}. Before: {results.load[0]}.",
        ways_table(results),
        targets_table(results),
        growth_table(results),
    ]
    return "\n\n".join(parts)


def ways_table(results: Results) -> str:
    """Ratios are against `docker exec` by the SDK in the same run."""
    raw = results.timing(EXEC_SDK)
    assert raw.per_s
    rows = []
    for timing in results.timings:
        cpu = timing.machine_cpu_ms > 0
        rows.append(
            (
                timing.name,
                f"{timing.p50_ms:.2f}",
                f"{timing.p95_ms:.2f}",
                f"{timing.per_s:.0f}" if timing.per_s else "-",
                f"{timing.machine_cpu_ms:.1f}" if cpu else "-",
                f"{timing.own_cpu_ms:.2f}" if cpu else "-",
                f"{timing.per_s / raw.per_s:.1f}" if timing.per_s else "-",
                f"{raw.p50_ms / timing.p50_ms:.1f}" if timing.per_s else "-",
            )
        )
    header = (
        "method",
        "p50 ms",
        "p95 ms",
        f"calls/s, {results.plan.timing.at_once} at once",
        "CPU ms a call, whole machine",
        "CPU ms a call, our process",
        "calls/s, against docker exec",
        "p50 of docker exec, against this",
    )
    return _markdown(header, rows)


def targets_table(results: Results) -> str:
    rows = []
    for target in results.targets():
        side = "at least" if target.at_least else "at most"
        wanted = f"{target.what}: {side} {target.limit:g} {target.unit}"
        rows.append((wanted, f"{target.measured:.2f}", "yes" if target.met else "no"))
    return _markdown(("target", "measured", "met"), rows)


def growth_table(results: Results) -> str:
    rows = [
        (f"{name}: {growth.episodes}", *(_change(growth, what) for what in HELD))
        for name, growth in results.growth.items()
    ]
    return _markdown(("episodes in a row", "memory MiB", "descriptors", "threads", "processes", "containers"), rows)


def _change(growth: Growth, what: str) -> str:
    before, after = (float(getattr(held, what)) for held in (growth.before, growth.after))
    digits = 1 if what == "memory_mib" else 0
    return f"{before:.{digits}f} to {after:.{digits}f}"


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows))


async def run(plan: BenchPlan, names: Sequence[str], image: str | None) -> Results:
    registry = PluginRegistry.discover()
    before = await measure_load(plan.load_s)
    found: dict[str, Capabilities] = {}
    left_out: dict[str, str] = {}
    for name in names:
        try:
            backend = registry.sandbox(name)({})
            try:
                found[name] = await backend.probe()
            finally:
                await backend.close()
        except (SandboxUnavailable, UserError) as error:
            left_out[name] = str(error)
            say(f"without {name}: {error}")
    timings: list[Timing] = []
    for name in found:
        starts = await measure_starts(lambda name=name: registry.sandbox(name)({}), plan.starts, say)
        timings += _named(name, starts)
    growth: dict[str, Growth] = {}
    async with AsyncExitStack() as stack:
        backends = {n: await stack.enter_async_context(registry.sandbox(n)({})) for n in found}
        baselines = await stack.enter_async_context(Baselines(image or _image_of(backends), plan.timing.at_once))
        ways = [replace(w, name=f"{n}: {w.name}") for n, b in backends.items() for w in backend_ways(b)]
        all_ways: list[Way] = [*ways, *baselines.ways()]
        timings += await measure(all_ways, plan.timing, say)
        for name, backend in backends.items():
            say(f"{name}: sessions and growth")
            if found[name].sessions:
                timings += _named(name, await measure_sessions(backend, plan, say))
            growth[name] = await measure_growth(backend, found[name], plan.episodes, say)
    return Results(
        machine=describe_machine(),
        load=(before, await measure_load(plan.load_s)),
        sandboxes=found,
        left_out=left_out,
        timings=tuple(timings),
        growth=growth,
        plan=plan,
    )


def _named(sandbox: str, timings: Sequence[Timing]) -> list[Timing]:
    return [replace(timing, name=f"{sandbox}: {timing.name}") for timing in timings]


def _image_of(backends: dict[str, SandboxBackend]) -> str:
    """The baselines use the sandbox's own image."""
    if "docker" not in backends:
        raise SystemExit("the baselines need a Docker engine and the image: `agentgym sandbox build`")
    from agentgym_sandboxes.docker.image import RECIPE

    return RECIPE.reference


def say(text: str) -> None:
    print(f"... {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sandbox", nargs="+", default=list(SANDBOXES), help="default: %(default)s")
    parser.add_argument("--image", help="for the baselines (default: that of the Docker sandbox)")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--anyway", action="store_true", help="measure on a busy machine too; nothing is claimed")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--out", type=Path, help=f"default: {OUT}, when the figures can be claimed")
    arguments = parser.parse_args()
    plan = QUICK if arguments.quick else LONG
    idle = asyncio.run(measure_load(plan.load_s))
    if not idle.is_idle and not arguments.anyway:
        print(f"the machine is not idle ({idle}): figures could not be claimed; --anyway measures nevertheless")
        return NOT_CLAIMED
    results = asyncio.run(run(plan, arguments.sandbox, arguments.image))
    targets = results.targets()
    for target in targets:
        print(f"{('PASS' if target.met else 'FAIL') if results.claimed else 'NOT CLAIMED'}  {target}")
    if arguments.markdown:
        print(f"\n{tables(results)}")
    out = arguments.out or (OUT if results.claimed and not arguments.quick else None)
    if out is not None:
        met = {target.what: asdict(target) | {"met": target.met} for target in targets}
        body = {**asdict(results), "claimed": results.claimed, "targets": met}
        out.write_text(json.dumps(body, indent=1) + "\n")
        print(f"wrote {out}")
    if not results.claimed:
        print(f"nothing is claimed: {results.load[0]} before, {results.load[1]} after")
        return NOT_CLAIMED
    return 0 if all(target.met for target in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
