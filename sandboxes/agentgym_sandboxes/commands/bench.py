"""`agentgym sandbox bench`: how fast a sandbox is on this machine, and whether it grows."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.commands.text import wrap
from agentgym.errors import UserError
from agentgym_sandboxes.commands.action import Request, add_sandbox_argument

if TYPE_CHECKING:
    from agentgym_sandboxes.audit.bench import BenchPlan, Growth, SandboxBench
    from agentgym_sandboxes.audit.timing import Timing

SUMMARY = "measure calls, grades, starts and sessions, and look for growth"
DESCRIPTION = """
Measure a sandbox on this machine: a trivial program and grades of ten cases, one at a time and several at once;
its start; round trips in a session, where it has them; and what our process holds before and after many episodes
in a row. Every answer is checked. Percentiles are by nearest rank. CPU time of the machine counts everything
that runs on it, so measure on an idle machine: a warning is shown when it is not idle.
"""
EXAMPLES = """
agentgym sandbox bench --quick
agentgym sandbox bench --episodes 1000
agentgym sandbox bench --sandbox monty --json
agentgym sandbox bench --dry-run
"""


def add_arguments(parser: Parser) -> None:
    add_sandbox_argument(parser)
    parser.add_argument("--quick", action="store_true", help="a third as many calls")
    parser.add_argument("--at-once", type=int, default=8, metavar="N", help="default 8")
    parser.add_argument(
        "--episodes", type=int, metavar="N", help="in a row, watched for growth: default 200, quick 60; 0 leaves it out"
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would be measured")
    parser.add_argument("--json", action="store_true", help="for scripts: JSON on standard output")


async def run(request: Request) -> int:
    from agentgym_sandboxes.audit.bench import bench

    arguments, shell = request.arguments, request.shell
    plan = _plan(request)
    name, able = await request.available()
    if arguments.dry_run:
        if arguments.json:
            shell.say_json({"sandbox": name, "detail": able.detail, "plan": asdict(plan)})
        else:
            shell.say(f"would measure {name}: {able.detail}\n{_plan_text(plan)}")
        return 0
    shell.warn(f"measuring {name}: {able.detail}\n{_plan_text(plan)}")
    result = await bench(lambda: request.backend(name), plan, lambda text: shell.warn(f"... {text}"))
    if arguments.json:
        shell.say_json(asdict(result))
    else:
        _show(result, shell)
    return 0


def _plan(request: Request) -> BenchPlan:
    from agentgym_sandboxes.audit.bench import QUICK, BenchPlan

    arguments = request.arguments
    if arguments.at_once < 1 or (arguments.episodes or 0) < 0:
        raise UserError("--at-once must be at least 1 and --episodes at least 0")
    plan = QUICK if arguments.quick else BenchPlan()
    plan = replace(plan, timing=replace(plan.timing, at_once=arguments.at_once))
    return plan if arguments.episodes is None else replace(plan, episodes=arguments.episodes)


def _plan_text(plan: BenchPlan) -> str:
    timing = plan.timing
    return (
        f"each kind of call: {timing.calls} times one at a time and {timing.calls_at_once} times {timing.at_once} "
        f"at once, in {timing.rounds} rounds; {plan.starts} starts, {plan.episodes} episodes in a row"
    )


def _show(result: SandboxBench, shell: Shell) -> None:
    machine, paint, width = result.machine, shell.paint, shell.width
    shell.say(f"{paint.bold(result.capabilities.backend)}: {result.capabilities.detail}")
    about = f"{machine.cores} cores ({machine.cpu}), {machine.memory_gib:.0f} GiB, Linux {machine.kernel}"
    shell.say(wrap(f"{about}, Python {machine.python}", width, ""))
    shell.say()
    at_once = result.plan.timing.at_once
    header = ("", "p50 ms", "p95 ms", "calls/s", "our CPU ms", "CPU ms")
    shell.say_table(header, [_row(timing) for timing in result.timings])
    shell.say(wrap(
        f"calls/s with {at_once} at once; the rest one at a time. CPU a call: of our process, of the machine. "
        "start: until a first program is answered; container start: until one container accepts calls.",
        width, "",
    ))  # fmt: skip
    if result.growth is not None:
        _show_growth(result.growth, shell)
    for when, load in zip(("before", "after"), result.load, strict=True):
        if not load.is_idle:
            shell.say(paint.yellow(f"The machine was not idle {when} ({load}): these figures are not valid."))


def _row(timing: Timing) -> tuple[str, ...]:
    cpu = timing.machine_cpu_ms > 0
    return (
        timing.name,
        f"{timing.p50_ms:.2f}",
        f"{timing.p95_ms:.2f}",
        f"{timing.per_s:.0f}" if timing.per_s is not None else "-",
        f"{timing.own_cpu_ms:.2f}" if cpu else "-",
        f"{timing.machine_cpu_ms:.2f}" if cpu else "-",
    )


def _show_growth(growth: Growth, shell: Shell) -> None:
    before, after = growth.before, growth.after
    shell.say(f"\n{growth.episodes} episodes in a row, {growth.episodes_per_s:.0f}/s; our process held")
    rows = [
        ("memory MiB", f"{before.memory_mib:.1f}", f"{after.memory_mib:.1f}"),
        *((name, str(getattr(before, name)), str(getattr(after, name)))
          for name in ("descriptors", "threads", "children", "containers")),
    ]  # fmt: skip
    shell.say_table(("", "before", "after"), rows)
