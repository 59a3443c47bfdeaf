"""An episode as text: its figures and messages, or every token with where it came from."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym.cli.results import figure
from agentgym.commands.shell import Paint, Shell

TOKEN_HEADER = ("position", "turn", "id", "token", "from", "version", "logprob")
SAMPLED = 2  # in ORIGINS of agentgym.tables.episode
UNLIKELY = math.log(0.1)
Shown = Mapping[str, Any]
"""What `episode_json` gives, or a part of it."""


def show_episode(episode: Shown, title: str, shell: Shell) -> None:
    """The messages; behind each of the policy's own the figures of its turn, behind a tool's those of its call.

    Turns that are not in the conversation, since an agent's program held others with the policy, come after it.
    """
    _show_head(episode, title, shell)
    paint, turns, traces = shell.paint, episode["turns"], episode["tool_calls"]
    shown_turns = {message["turn"] for message in episode["messages"]}
    shown_traces = {message.get("trace") for message in episode["messages"]}
    for message in episode["messages"]:
        note, colour = "", paint.cyan
        if message["turn"] is not None:
            note, colour = f"  {_turn_text(turns[message['turn']])}", paint.green
        elif (trace := message.get("trace")) is not None:
            note = f"  {_trace_text(traces[trace])}"
        shell.say(f"\n{paint.bold(colour('[' + message['role'] + ']'))}{paint.dim(note)}")
        shell.say(message["content"])
        for call in message.get("tool_calls", []):
            function = call["function"]
            shell.say(f"{paint.dim('calls')} {function['name']} {_as_text(function['arguments'])}")
    for number, trace in enumerate(traces):
        if number not in shown_traces:  # no message answered it: it ended the episode
            shell.say(f"\n{paint.dim(_trace_text(trace))}\n{trace['result']}")
    for name, branch in _branches(episode):
        if rest := [number for number in branch if number not in shown_turns]:
            shell.say(f"\n{paint.bold(name or 'turns of the policy')}")
            for number in rest:
                shell.say(f"  {_turn_text(turns[number])}")


def show_tokens(episode: Shown, title: str, shell: Shell) -> None:
    """Every token of each branch: coloured where the terminal has colours and texts are known, else in a table."""
    _show_head(episode, title, shell)
    tokens, turns = episode["tokens"], episode["turns"]
    for name, branch in _branches(episode):
        indices = [index for turn in branch for index in range(turns[turn]["first"], turns[turn]["end"])]
        if name:
            shell.say(f"\n{shell.paint.bold(name)}")
        if tokens["text"] is not None and shell.paint.enabled:
            shell.say(_coloured(tokens, indices, shell.paint))
        else:
            rows = [_token_row(tokens, position, index) for position, index in enumerate(indices)]
            shell.say_table(TOKEN_HEADER, rows)
    if tokens["text"] is None:
        shell.say(f"Texts are not shown: {tokens['text_missing']}, or `tokenizers` is missing.")


def _show_head(episode: Shown, title: str, shell: Shell) -> None:
    paint, task = shell.paint, episode["task"]
    known = {True: paint.green("success"), False: paint.red("no success"), None: "success unknown"}
    result = known[episode["success"]]
    shell.say(paint.bold(f"episode {episode['episode_id']} ({title})") + f"  {result}")
    parts = ", ".join(f"{one['name']} {figure(one['value'])}" for one in episode["rewards"])
    lines = {
        "task": f"{task['task_id']} ({task['split']}, difficulty {task['difficulty']})",
        "outcome": episode["outcome"] or "-",
        "stop": episode["stop"] or "-",
        "reward": figure(episode["reward"]) + (f" = {parts}" if parts else ""),
        "advantage": figure(episode["advantage"]) if episode["trained"] else "not trained on",
        "group": f"{episode['group']}, begun at v{episode['start_version']}",
        "seed": episode["seed"],
        "times": ", ".join(f"{name} {value:.3f} s" for name, value in episode["timing_s"].items()) or "-",
    }
    if usage := episode["usage"]:
        lines["tokens"] = usage_text(usage)
    if calls := episode["tool_calls"]:
        lines["calls"] = _counted(len(calls), [call["error"] for call in calls if call.get("error")])
    if len(branches := episode["branches"]) > 1:
        lines["branches"] = _counted(len(branches), [one["reason"] for one in branches if one["reason"]])
    if isinstance(agent := episode["agent"], Mapping) and (counts := agent.get("not_honoured")):
        lines["overruled"] = ", ".join(f"{count} {name}" for name, count in counts.items())
    if episode["retries"]:
        lines["retries"] = str(episode["retries"])
    if error := episode["error"]:
        lines["error"] = f"{error['source']}: {error['kind']}: {error['message']}"
    if episode["info"]:
        lines["info"] = json.dumps(episode["info"], default=repr)
    for label, text in lines.items():
        shell.say(f"  {paint.dim(label.ljust(10))}{text}")


def usage_text(usage: Shown) -> str:
    """What an episode took of a server."""
    about, turns = "~" * usage["estimated"], f"{usage['turns']} turn" + "s" * (usage["turns"] != 1)
    prompts = f"{about}{usage['asked']:,} of prompts ({usage['cached']:,} cached)"
    cost = "-" if usage["cost"] is None else f"{usage['cost']:.6f} {usage['currency']}"
    return f"{prompts} and {about}{usage['answered']:,} of answers in {turns}, cost {cost}"


def _counted(total: int, kinds: Sequence[str]) -> str:
    return ", ".join([str(total), *(f"{count} {kind}" for kind, count in Counter(kinds).items())])


def _branches(episode: Shown) -> list[tuple[str, Sequence[int]]]:
    """The turns of each branch, with a title that says why it began; "" where there is one branch."""
    branches, found = episode["branches"], []
    for number, one in enumerate(branches, start=1):
        listed = ", ".join(str(turn + 1) for turn in one["turns"])
        title = f"branch {number} of {len(branches)}: turns {listed}{'; ' * bool(one['reason'])}{one['reason']}"
        found.append((title if len(branches) > 1 else "", one["turns"]))
    return found


def _turn_text(turn: Shown) -> str:
    return (
        f"turn {turn['n']}: {turn['end'] - turn['sampled']} tokens by {_versions_text(turn['versions'])}, "
        f"mean logprob {turn['mean_logprob'] or 0.0:.3f}, {turn['finish']}{', not trained on' * turn['masked']}"
    )


def _versions_text(spans: Sequence[Sequence[int]]) -> str:
    """The versions of a turn as text, for example `v3`, or `v3 to token 20, then v4`."""
    *before, last = [f"v{version}" for version, _, _ in spans] or ["no tokens"]
    ends = [f"{name} to token {end}" for name, (_, _, end) in zip(before, spans, strict=False)]
    return ", ".join([*ends, f"then {last}" if ends else last])


def _trace_text(trace: Shown) -> str:
    fault = f", {trace['error']}" if trace.get("error") else ""
    return f"{trace['name'] or 'unreadable'} {_as_text(trace['arguments'])}, {trace['seconds'] * 1000:.1f} ms{fault}"


def _as_text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _coloured(tokens: Shown, indices: Sequence[int], paint: Paint) -> str:
    """The text: dim where template or environment wrote it, green or yellow (unlikely) where the policy did."""
    parts = []
    for index in indices:
        text, logprob = tokens["text"][index], tokens["logprob"][index]
        if tokens["origin"][index] != SAMPLED:
            parts.append(paint.dim(text))
        else:
            parts.append((paint.yellow if logprob is not None and logprob < UNLIKELY else paint.green)(text))
    legend = (
        f"{paint.dim('template and environment, masked')}  {paint.green('sampled by the policy, trained')}  "
        f"{paint.yellow('the same, at a probability below 0.1')}"
    )
    return f"{legend}\n\n{''.join(parts)}"


def _token_row(tokens: Shown, position: int, index: int) -> tuple[str, ...]:
    is_sampled, logprob = tokens["origin"][index] == SAMPLED, tokens["logprob"][index]
    return (
        str(position),
        str(tokens["turn"][index] + 1),
        str(tokens["id"][index]),
        repr(tokens["text"][index]) if tokens["text"] is not None else "?",
        "policy" if is_sampled else "context",
        str(tokens["version"][index]) if is_sampled else "-",
        "-" if logprob is None else f"{logprob:.4f}",
    )
