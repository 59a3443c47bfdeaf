"""`agentgym tools`: prove which format of tool calls a model's chat template writes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.components import SEAMS
from agentgym.tools import MalformedCall, ToolCall
from agentgym.types import Json

if TYPE_CHECKING:
    from agentgym.text.tool_use import Reading

DESCRIPTION = """
Show what a run with `model.tool_format: auto` does before it starts: the model's chat template writes a known call,
and two, and each format reads what it wrote. Only the tokenizer is loaded. Exit code 0 when a format is proved, 1 when
none is; --format tries one alone.
"""
EXAMPLES = """
agentgym tools prove builtin:tiny
agentgym tools prove builtin:tiny --format hermes
agentgym tools prove builtin:tiny --format agentgym.text.tool_formats.hermes:Hermes --json
"""
TAKES_OVERRIDES = False


def add_arguments(parser: Parser) -> None:
    parser.add_argument("action", choices=("prove",), help="have the template write calls, and each format read them")
    parser.add_argument("model", metavar="MODEL", help="as model.path: a folder, a name on the hub, builtin:tiny")
    parser.add_argument("--format", metavar="FORMAT", help="one format alone: ours, a plugin's, or an import path")
    parser.add_argument("--chat-template", default="", metavar="T", help="as model.chat_template")
    parser.add_argument("--json", action="store_true", help="for scripts: JSON on standard output")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    """Imports what reads templates only here: the help of the command takes no time."""
    from agentgym.models.resolve import resolve_tokenizer
    from agentgym.run.gym import plugin_formats
    from agentgym.text.tokenizer import HuggingFaceTokenizer
    from agentgym.text.tool_formats.base import GuardedFormat, ToolFormat
    from agentgym.text.tool_use import PROBES, known_formats, prove

    registry = shell.plugins()
    formats: dict[str, ToolFormat]
    if arguments.format:
        formats = {arguments.format: GuardedFormat(registry.component("tool_formats", arguments.format)())}
    else:
        ours = zip(SEAMS["tool_formats"].builtin, known_formats(), strict=True)
        formats = {**dict(ours), **plugin_formats(registry)}
    tokenizer = HuggingFaceTokenizer(str(resolve_tokenizer(arguments.model)), arguments.chat_template)
    proof = prove(tokenizer, formats.values())
    chosen = next((name for name, one in formats.items() if one is proof.chosen), None)
    rows = [_row(name, reading) for name, reading in zip(formats, proof.readings, strict=True)]
    if arguments.json:
        shown = {"takes_tools": proof.takes_tools, "calls_as": proof.calls_as, "written": list(proof.written)}
        shell.say_json({**shown, "chosen": chosen, "formats": rows})
        return 0 if chosen else 1
    shell.say(f"the template {'writes' if proof.takes_tools else 'drops'} tools, and takes calls as {proof.calls_as}")
    shell.say(f"asked for {PROBES[0].name} with {dict(PROBES[0].arguments)}, it writes:")
    for text in proof.written:
        shell.say(f"  {text!r}" if text else "  no call")
    shell.say()
    header = ["format", "proved", "writes alike", "what it read"]
    shell.say_table(header, [[_shown(value) for value in row.values()] for row in rows])
    if chosen:
        shell.say(f"\nproved: {chosen}")
    else:
        shell.say("\nnot proved; a run that names the format teaches it in the system message")
    return 0 if chosen else 1


def _row(name: str, reading: Reading) -> Mapping[str, Json]:
    read = ["; ".join(map(_call, calls)) or "no call" for calls in reading.read]
    if reading.error is not None:
        read.append(f"{type(reading.error).__name__}: {reading.error}")
    read = ["the same calls"] if reading.proved else list(dict.fromkeys(read))
    return {"format": name, "proved": reading.proved, "writes_alike": reading.writes_alike, "read": read}


def _call(call: ToolCall | MalformedCall) -> str:
    if isinstance(call, MalformedCall):
        return f"malformed: {call.fault}"
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"


def _shown(value: Json) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " | ".join(value)[:160] if isinstance(value, list) else str(value)
