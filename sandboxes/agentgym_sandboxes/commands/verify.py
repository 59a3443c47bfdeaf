"""`agentgym sandbox verify`: attack a sandbox with the hostile suite, and show what held."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from agentgym.commands.findings import say_finding
from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.commands.text import wrap
from agentgym.errors import UserError
from agentgym.sandbox import SandboxBackend
from agentgym_sandboxes.commands.action import Request, add_sandbox_argument

if TYPE_CHECKING:
    from agentgym_sandboxes.audit.findings import Category, Report, TrialResult
    from agentgym_sandboxes.audit.trial import Trial

SUMMARY = "attack it with the hostile suite, and show what held"
DESCRIPTION = """
Run hostile programs and reward hacks in a sandbox on this machine: programs that use up resources, outlive
their call, reach for the host, leave something for the next call, or cheat a grade. Each is contained, or
escaped; broken means that there is no evidence either way. Trials of what a sandbox does not promise are not run.
Exit code 0 when everything that was run was contained, else 1.
"""
EXAMPLES = """
agentgym sandbox verify
agentgym sandbox verify --only 'fork*' reward
agentgym sandbox verify --list
agentgym sandbox verify --sandbox bubblewrap --json
"""


def add_arguments(parser: Parser) -> None:
    add_sandbox_argument(parser)
    parser.add_argument("--only", nargs="+", metavar="PATTERN", help="names of trials or categories, as 'fork*'")
    parser.add_argument("--list", action="store_true", help="show the trials, run none")
    parser.add_argument("--json", action="store_true", help="for scripts: JSON on standard output")


async def run(request: Request) -> int:
    from agentgym_sandboxes.audit.verify import chosen, verify

    arguments, shell = request.arguments, request.shell
    trials = _matching(chosen(None), arguments.only)
    if arguments.list:
        _list_trials(trials, shell, as_json=arguments.json)
        return 0
    name, able = await request.available()
    if not able.isolated:
        raise UserError(f"sandbox {name!r} does not promise isolation, so no hostile program is run in it")
    shell.warn(f"{_number(len(trials))} in {name}: {able.detail}")
    progress = Progress(trials, shell)
    async with _one_at_a_time(request, name) as backend:
        report = await verify(backend, only=[trial.name for trial in trials], on_result=progress.add)
    progress.close()
    if arguments.json:
        shell.say_json(_as_mapping(report))
    else:
        show(report, shell)
    return 0 if report.holds else 1


def _one_at_a_time(request: Request, name: str) -> SandboxBackend:
    """One container, where there are containers: the call after a trial must go to the same one."""
    if name != "docker":
        return request.backend(name)
    return request.registry.sandbox(name)({"pool_size": 1, **request.options})


def _matching(trials: Sequence[Trial], patterns: Sequence[str] | None) -> list[Trial]:
    """Raises UserError for a pattern that matches nothing."""
    if patterns is None:
        return list(trials)
    found: list[Trial] = []
    for pattern in patterns:
        fits = [t for t in trials if any(fnmatch.fnmatch(n, pattern) for n in (t.name, t.category.value))]
        if not fits:
            categories = ", ".join(sorted({trial.category.value for trial in trials}))
            raise UserError(f"no trial matches {pattern!r}; `--list` shows them; categories are {categories}")
        found += [trial for trial in fits if trial not in found]
    return sorted(found, key=list(trials).index)


def _list_trials(trials: Sequence[Trial], shell: Shell, *, as_json: bool) -> None:
    if as_json:
        shell.say_json(
            [{"name": t.name, "category": t.category.value, "tries": t.tries, "claim": t.claim} for t in trials]
        )
        return
    if shell.is_terminal:  # too wide for a table there
        width = shell.width
        for category in dict.fromkeys(trial.category for trial in trials):
            shell.say(shell.paint.bold(category.value))
            for trial in trials:
                if trial.category is category:
                    shell.say(f"{wrap(trial.name, width)}\n{wrap(trial.tries, width, '    ')}")
    else:
        rows = [(trial.category.value, trial.name, trial.tries) for trial in trials]
        shell.say_table(("category", "name", "tries"), rows)
    shell.say(f"\n{_number(len(trials))}")


class Progress:
    """One line per category on standard error: updated in a terminal, elsewhere written once it is done."""

    def __init__(self, trials: Sequence[Trial], shell: Shell) -> None:
        self._shell = shell
        self._live = shell.err.isatty()
        self._left = {category: 0 for category in dict.fromkeys(trial.category for trial in trials)}
        for trial in trials:
            self._left[trial.category] += 1
        self._found: dict[Category, list[TrialResult]] = {category: [] for category in self._left}
        self._width = max(len(category.value) for category in self._left)
        self._num, self._num_done = len(trials), 0
        self._open = False

    def add(self, result: TrialResult) -> None:
        found = self._found[result.category]
        found.append(result)
        self._num_done += 1
        self._left[result.category] -= 1
        done = not self._left[result.category]
        if self._live or done:
            counts = _counts_text(found, self._left[result.category])
            all_done = f"{self._num_done} of {self._num} done"
            self._write(f"{result.category.value.ljust(self._width)}  {counts}; {all_done}", done=done)

    def close(self) -> None:
        if self._open:
            self._write("", done=True)

    def _write(self, line: str, *, done: bool) -> None:
        if self._live:
            self._shell.err.write(f"\r\x1b[K{line[: self._shell.width - 1]}")
        else:
            self._shell.err.write(line)
        if done:
            self._shell.err.write("\n")
        self._shell.err.flush()
        self._open = not done


def _counts_text(results: Sequence[TrialResult], left: int) -> str:
    counts: dict[str, int] = {}
    for result in results:
        counts[result.outcome.value] = counts.get(result.outcome.value, 0) + 1
    parts = [f"{count} {name.replace('_', ' ')}" for name, count in counts.items()]
    return ", ".join([*parts, f"{left} to go"] if left else parts)


def show(report: Report, shell: Shell) -> None:
    from agentgym_sandboxes.audit.findings import Category, Outcome

    paint = shell.paint
    rows = [[category.value, *_row(report, category)] for category in Category if report.counts(category)]
    shell.say()
    shell.say_table(
        ("category", *(outcome.value.replace("_", " ") for outcome in Outcome)), [*rows, ["all", *_row(report, None)]]
    )
    for finding in report.findings:
        say_finding(finding, shell)
    for outcome in (Outcome.NOT_CLAIMED, Outcome.UNSUPPORTED):
        by_detail: dict[str, list[str]] = {}
        for trial in report.trials:
            if trial.outcome is outcome:
                by_detail.setdefault(trial.detail, []).append(trial.name)
        if by_detail:
            shell.say(f"\n{paint.yellow(outcome.value.replace('_', ' '))}")
        for detail, names in by_detail.items():
            shell.say(wrap(f"{detail}:", shell.width, "  "))
            shell.say(wrap(", ".join(names), shell.width, "    "))
    contained = report.counts().get(Outcome.CONTAINED, 0)
    verdict = paint.green("it holds") if report.holds else paint.red("it does not hold")
    if report.holds and not contained:
        verdict = paint.yellow("nothing got through, but nothing was shown to hold")
    held = f"{contained} of {_number(len(report.trials))} contained"
    shell.say(f"\n{report.capabilities.backend}: {verdict} ({held}, {report.wall_s:.0f} s)")


def _number(count: int) -> str:
    return f"{count} trial{'s' if count != 1 else ''}"


def _row(report: Report, category: Category | None) -> list[str]:
    from agentgym_sandboxes.audit.findings import Outcome

    counts = report.counts(category)
    return [str(counts.get(outcome, 0)) for outcome in Outcome]


def _as_mapping(report: Report) -> dict[str, object]:
    return {
        "holds": report.holds,
        "counts": {outcome.value: count for outcome, count in report.counts().items()},
        **asdict(report),
        "findings": [one.to_mapping() for one in report.findings],
    }
