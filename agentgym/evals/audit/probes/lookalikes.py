"""The right answer in characters that look like it: digits of other scripts, letters of other alphabets."""

from __future__ import annotations

from collections.abc import Iterator

from agentgym.evals.audit.probes.attempt import Attempt, Script, always

WHAT = "the right answer in look-alike digits and letters"
FIGURE_ONLY: frozenset[str] = frozenset()
MAX_TASKS: int | None = None
DIGITS = {
    "full width": "０１２３４５６７８９",
    "arabic": "٠١٢٣٤٥٦٧٨٩",
    "superscript": "⁰¹²³⁴⁵⁶⁷⁸⁹",
    "circled": "⓪①②③④⑤⑥⑦⑧⑨",
}
LETTERS = str.maketrans("aceopxyABCEHKMOPTX", "асеорхуАВСЕНКМОРТХ")  # Cyrillic


def variants(attempt: Attempt) -> Iterator[Script]:
    right = attempt.right
    if right.has_calls or not right.text:
        return
    for name, digits in DIGITS.items():
        written = right.text.translate(str.maketrans("0123456789", digits))
        if written != right.text:
            yield name, always(written)
    written = right.text.translate(LETTERS)
    if written != right.text:
        yield "cyrillic", always(written)
