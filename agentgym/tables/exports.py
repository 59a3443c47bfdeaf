"""Tables as text for other programs: CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}",
}  # fmt: skip


def to_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """A header and a line for each row, in full precision; an unknown value is empty."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def to_markdown(title: str, header: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A table with its title as a heading. The first column is text, the others are right-aligned."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *cells]
    escaped = (
        " | ".join(" ".join(cell.split()).replace("|", r"\|").replace("<", "&lt;") for cell in line) for line in lines
    )
    return "\n".join([f"### {title}", "", *(f"| {line} |" for line in escaped)]) + "\n"


def to_latex(title: str, header: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A table of the package booktabs, with its title as the caption."""
    lines = [" & ".join(map(_escaped, line)) + r" \\" for line in (header, *cells)]
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            rf"\caption{{{_escaped(title)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))
