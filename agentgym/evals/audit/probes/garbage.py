"""Text without meaning: control characters, brackets, broken JSON and code, other scripts."""

from __future__ import annotations

from collections.abc import Iterator

from agentgym.evals.audit.probes.attempt import Attempt, Script, always

WHAT = "control characters, broken JSON, brackets, other scripts"
FIGURE_ONLY: frozenset[str] = frozenset()
MAX_TASKS: int | None = None
TEXTS = {
    "controls": "".join(map(chr, range(32))) + "\x7f\u2028\u2029\ufeff\ufffd\U0010ffff",
    "json": '{"answer": [1, {"a": "\\u12',
    "brackets": "))]}>({[<" * 20 + "\\frac{}{}{",
    "code": "```python\ndef f(:\n  return (\n\t1\n```\n```",
    "scripts": "غير صحيح 不是 ไม่ נכון \u202e\u2066 👩‍👩‍👧 a\u0300\u0301\u0302",
    "separators": "a=b=c;;:::,,,...///\\\\\\|||\x00'\"`$%&%s%d{0}{}{name}",
    "words": "the quick onyx goblin jumps over a lazy dwarf",
}


def variants(attempt: Attempt) -> Iterator[Script]:
    for name, text in TEXTS.items():
        yield name, always(text)
