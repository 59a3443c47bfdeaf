"""How commands show findings."""

from __future__ import annotations

from agentgym.commands.shell import Shell
from agentgym.commands.text import wrap
from agentgym.findings import Finding


def say_finding(found: Finding, shell: Shell) -> None:
    """An empty line, then `severity  kind [where] text`, and below it what there is more."""
    paint = shell.paint
    colour = {"problem": paint.red, "warning": paint.yellow, "note": paint.dim}[found.severity]
    where = f" [{found.where}]" if found.where else ""
    lines = ["", f"{colour(found.severity)}  {found.kind}{where} {found.text}"]
    lines += [paint.dim(wrap(line, shell.width, "    ")) for line in found.detail.splitlines()]
    lines += [wrap(text, shell.width, "    ") for text in (found.meaning, found.advice) if text]
    if found.fields:
        lines.append(f"    fields: {', '.join(found.fields)}")
    shell.say("\n".join(lines))
