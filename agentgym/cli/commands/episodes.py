"""`agentgym runs episodes`: the episodes of a run or an evaluation, listed or read one by one."""

from __future__ import annotations

import argparse
import json
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from agentgym.cli.tokens import coloured, token_origins, token_rows, version_text
from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.errors import UserError, nearest
from agentgym.runs.decoder import find_decoder
from agentgym.runs.folder import RunFolder
from agentgym.runs.records import SavedEpisode, encode_saved
from agentgym.types import Episode, Outcome, Stop, ToolTrace

DESCRIPTION = """
List the episodes of a step, or read one: its messages turn by turn, rewards, why it stopped, and which version
of the weights sampled each turn. With --tokens every token shows where it came from.
"""
EXAMPLES = """
agentgym runs episodes runs/math-1
agentgym runs episodes runs/math-1 --step 12 --failure
agentgym runs episodes runs/math-1 --step all --outcome infra_error
agentgym runs episodes runs/math-1 --step 12 --show 3
agentgym runs episodes runs/math-1 --step 12 --show 3 --tokens
agentgym runs episodes runs/math-1 --evals --show 1 --json
agentgym runs episodes evals/math-1-more --failure
"""
TAKES_OVERRIDES = False
HEADER = (
    "n", "step", "episode", "task", "outcome", "success", "reward", "advantage", "turns", "tokens", "stop",
    "versions",
)  # fmt: skip
TOKEN_HEADER = ("position", "turn", "id", "token", "from", "version", "logprob")


def add_arguments(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="the folder of a run, or of an evaluation")
    parser.add_argument("--step", metavar="N", help="a step, or `all` (default: the last that was saved)")
    parser.add_argument("--evals", action="store_true", help="the episodes of evaluations, not of training")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--success", action="store_true", help="only those that reached the goal")
    which.add_argument("--failure", action="store_true", help="only those that did not")
    parser.add_argument("--outcome", choices=[o.value for o in Outcome], help="only those with this outcome")
    parser.add_argument("--stop", choices=[s.value for s in Stop], help="only those that ended for this reason")
    parser.add_argument("--task", metavar="TEXT", help="only tasks whose id contains it")
    parser.add_argument("--limit", type=int, default=40, metavar="N", help="rows at most (default 40)")
    parser.add_argument("--show", metavar="N", help="read number N of those that would be listed, or one by its id")
    parser.add_argument("--tokens", action="store_true", help="with --show: every token with its origin")
    parser.add_argument("--json", action="store_true", help="one episode a line, whole")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    folder = RunFolder.open(arguments.run)
    if arguments.tokens and not arguments.show:
        raise UserError("--tokens goes with --show N")
    arguments.evals = arguments.evals or folder.only_evaluates
    known = folder.episode_steps(evaluation=arguments.evals)
    if not known:
        kind = "evaluations" if arguments.evals else "episodes"
        raise UserError(f"run {arguments.run!r} has no saved {kind} (logging.save_episodes decides that)")
    steps = _steps(arguments.step, known)
    if arguments.show:
        number, saved = _find(arguments.show, folder, steps, arguments)
        _show(number, saved, folder, arguments, shell)
        return 0
    chosen = _read(folder, steps, arguments)
    if arguments.json:
        for _, saved in chosen:
            shell.say(json.dumps(encode_saved(saved)))
        return 0
    return _list(list(chosen), steps, known, arguments, shell)


def _list(
    chosen: Sequence[tuple[int, SavedEpisode]],
    steps: Sequence[int],
    known: Sequence[int],
    arguments: argparse.Namespace,
    shell: Shell,
) -> int:
    shell.say_table(HEADER, [_row(n, saved) for n, saved in chosen[: arguments.limit]])
    if len(chosen) > arguments.limit:
        shell.say(f"... {len(chosen) - arguments.limit} more; --limit {len(chosen)} shows all")
    wins = sum(saved.episode.success for _, saved in chosen)
    shell.say(f"\n{len(chosen)} episode(s), {wins} with success. Saved are steps {known[0]} to {known[-1]}.")
    if chosen:
        step = f" --step {steps[0]}" if len(steps) == 1 else " --step N"
        evals = " --evals" if arguments.evals else ""
        shell.say(
            f"Read one: agentgym runs episodes {arguments.run}{evals}{step}{_filter(arguments)} --show {chosen[0][0]}"
        )
    return 0


def _steps(given: str | None, known: Sequence[int]) -> list[int]:
    if given is None:
        return [known[-1]]
    if given == "all":
        return list(known)
    if not given.isdigit():
        raise UserError(f"--step is {given!r}; give a number or `all`. Saved are {known[0]} to {known[-1]}")
    return [int(given)]


def _read(folder: RunFolder, steps: Sequence[int], arguments: argparse.Namespace) -> Iterator[tuple[int, SavedEpisode]]:
    """Each episode that was asked for, with its number among those of its step, from 1."""
    for step in steps:
        saved = folder.read_episodes(step, evaluation=arguments.evals)
        yield from enumerate((one for one in saved if _matches(one, arguments)), start=1)


def _filter(arguments: argparse.Namespace) -> str:
    """As it was given; empty for all episodes."""
    flags = [f" --{name}" for name in ("success", "failure") if getattr(arguments, name)]
    values = [(name, getattr(arguments, name)) for name in ("outcome", "stop", "task")]
    return "".join([*flags, *(f" --{name} {shlex.quote(value)}" for name, value in values if value is not None)])


def _find(
    wanted: str, folder: RunFolder, steps: Sequence[int], arguments: argparse.Namespace
) -> tuple[int, SavedEpisode]:
    if wanted.isdigit() and len(steps) > 1:
        raise UserError(f"--show {wanted} with --step all: numbers count within a step; give the step or an id")
    count, asked = 0, f" with{_filter(arguments)}" if _filter(arguments) else ""
    ids: list[str] = []
    for number, saved in _read(folder, steps, arguments):
        count, ids = number, [*ids, saved.episode.episode_id]
        if wanted in (str(number), saved.episode.episode_id):
            return number, saved
    if wanted.isdigit():
        there = f"1 to {count}" if count else "none"
        raise UserError(f"no episode number {wanted}{asked}; step {steps[0]} has {there}")
    raise UserError(f"no episode {wanted!r} in step {steps[0]}{asked}.{nearest(wanted, ids)}")


def _matches(saved: SavedEpisode, arguments: argparse.Namespace) -> bool:
    episode = saved.episode
    return (
        (not arguments.success or episode.success)
        and (not arguments.failure or not episode.success)
        and (arguments.outcome is None or episode.outcome == arguments.outcome)
        and (arguments.stop is None or episode.stop == arguments.stop)
        and (arguments.task is None or arguments.task in episode.task.task_id)
    )


def _row(number: int, saved: SavedEpisode) -> tuple[str, ...]:
    episode = saved.episode
    versions = sorted({span.version for turn in episode.turns for span in turn.versions})
    return (
        str(number),
        str(saved.step),
        episode.episode_id,
        episode.task.task_id,
        episode.outcome.value if episode.outcome else "-",
        "yes" if episode.success else "no",
        _figure(episode.reward),
        _figure(saved.advantage) if saved.trained else "not trained",
        str(len(episode.turns)),
        str(episode.num_sampled_tokens),
        episode.stop.value if episode.stop else "-",
        ",".join(f"v{version}" for version in versions),
    )


def _show(number: int, saved: SavedEpisode, folder: RunFolder, arguments: argparse.Namespace, shell: Shell) -> None:
    if arguments.json:
        shell.say_json(encode_saved(saved))
        return
    _show_head(number, saved, _filter(arguments), shell)
    if not arguments.tokens:
        _show_turns(saved.episode, shell)
        return
    decode = find_decoder(folder.path)
    for name, branch in _named_branches(saved.episode):
        origins = token_origins(saved.episode, branch)
        if name:
            shell.say(f"\n{shell.paint.bold(name)}")
        if decode is not None and shell.paint.enabled:
            shell.say(coloured(origins, decode, shell.paint))
        else:
            shell.say_table(TOKEN_HEADER, token_rows(origins, decode))
    if decode is None:
        shell.say("Texts are not shown: no checkpoint of this run holds a tokenizer, or `tokenizers` is missing.")


def _show_head(number: int, saved: SavedEpisode, which: str, shell: Shell) -> None:
    episode, paint = saved.episode, shell.paint
    result = paint.green("success") if episode.success else paint.red("no success")
    shell.say(paint.bold(f"episode {episode.episode_id} (number {number} of step {saved.step}{which})") + f"  {result}")
    parts = ", ".join(f"{name} {_figure(value)}" for name, value in episode.rewards.items())
    lines = {
        "task": f"{episode.task.task_id} ({episode.task.split}, difficulty {episode.task.difficulty})",
        "outcome": episode.outcome.value if episode.outcome else "-",
        "stop": episode.stop.value if episode.stop else "-",
        "reward": _figure(episode.reward) + (f" = {parts}" if parts else ""),
        "advantage": _figure(saved.advantage) if saved.trained else "not trained on",
        "group": f"{saved.group_id}, begun at v{saved.start_version}",
        "seed": str(episode.seed),
        "times": ", ".join(f"{name} {value:.3f} s" for name, value in episode.timing_s.items()) or "-",
    }
    if episode.tool_calls:
        faults = Counter(call.error for call in episode.tool_calls if call.error)
        lines["calls"] = ", ".join([str(len(episode.tool_calls)), *(f"{n} {kind}" for kind, n in faults.items())])
    if episode.branches:
        reasons = Counter(episode.branch_reasons)
        lines["branches"] = ", ".join([str(len(episode.branches)), *(f"{n} {why}" for why, n in reasons.items())])
    if episode.retries:
        lines["retries"] = str(episode.retries)
    if episode.error is not None:
        lines["error"] = f"{episode.error.source}: {episode.error.kind}: {episode.error.message}"
    if episode.info:
        lines["info"] = json.dumps(episode.info, default=repr)
    for label, text in lines.items():
        shell.say(f"  {paint.dim(label.ljust(10))}{text}")


def _show_turns(episode: Episode, shell: Shell) -> None:
    """The messages; behind each of the policy's own what is known of its turn, behind a tool's, of its call.

    Turns that are not in the conversation, since an agent's program held others with the policy, come after it.
    """
    num_played = sum(_is_played(episode, place) for place in range(len(episode.messages)))
    shown = episode.last_branch if num_played == len(episode.last_branch) else ()
    turns, traces = iter(shown), iter(episode.tool_calls)
    for place, message in enumerate(episode.messages):
        note = ""
        played = _is_played(episode, place)
        if played and (number := next(turns, None)) is not None:
            note = f"  {_turn_text(episode, number)}"
        if place >= len(episode.task.prompt) and message["role"] == "tool" and (trace := next(traces, None)):
            note = f"  {_call_text(trace)}"
        paint = shell.paint
        colour = paint.green if played else paint.cyan
        shell.say(f"\n{paint.bold(colour('[' + message['role'] + ']'))}{paint.dim(note)}")
        shell.say(message["content"])
        for call in message.get("tool_calls", []):
            shell.say(f"{shell.paint.dim('calls')} {_asked_text(call)}")
    for trace in traces:  # no message answered them: they ended the episode
        shell.say(f"\n{shell.paint.dim(_call_text(trace))}\n{trace.result}")
    for name, branch in _named_branches(episode):
        rest = [number for number in branch if number not in shown]
        if rest:
            shell.say(f"\n{shell.paint.bold(name or 'turns of the policy')}")
            for number in rest:
                shell.say(f"  {_turn_text(episode, number)}")


def _is_played(episode: Episode, place: int) -> bool:
    """Whether the policy said this message."""
    return place >= len(episode.task.prompt) and episode.messages[place]["role"] == "assistant"


def _named_branches(episode: Episode) -> list[tuple[str, tuple[int, ...]]]:
    """With a title that says why each began; "" where there is one."""
    if not episode.branches:
        return [("", branch) for branch in episode.all_branches]
    titles = []
    for number, (branch, why) in enumerate(zip(episode.branches, ["", *episode.branch_reasons], strict=True), start=1):
        turns = ", ".join(str(turn + 1) for turn in branch)
        titles.append((f"branch {number} of {len(episode.branches)}: turns {turns}{f'; {why}' if why else ''}", branch))
    return titles


def _turn_text(episode: Episode, number: int) -> str:
    one = episode.turns[number]
    mean = sum(one.logprobs) / len(one.logprobs) if one.logprobs else 0.0
    return (
        f"turn {number + 1}: {len(one.completion_ids)} tokens by {version_text(one)}, "
        f"mean logprob {mean:.3f}, {one.finish_reason.value}{', not trained on' if one.masked else ''}"
    )


def _asked_text(call: Any) -> str:
    """One call of an assistant message."""
    function = call["function"]
    return f"{function['name']} {json.dumps(function['arguments'], ensure_ascii=False)}"


def _call_text(trace: ToolTrace) -> str:
    arguments = trace.arguments if isinstance(trace.arguments, str) else json.dumps(trace.arguments, ensure_ascii=False)
    fault = f", {trace.error}" if trace.error else ""
    return f"{trace.name or 'unreadable'} {arguments}, {trace.seconds * 1000:.1f} ms{fault}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
