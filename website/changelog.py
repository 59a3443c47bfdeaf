"""The sections of CHANGELOG.md, one for each version: a page of the site each, and the notes of a release.

python website/changelog.py 0.1.0    # prints the notes of that version; ends with 1 where it has none, or no date
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).resolve().parent.parent / "CHANGELOG.md"


def sections(text: str) -> dict[str, tuple[str, str]]:
    """By version, the newest first: its date, or `unreleased`, and what changed."""
    parts = re.split(r"^## (\S+) \((.+)\)$", text, flags=re.MULTILINE)[1:]
    return {name: (date, body.strip()) for name, date, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True)}


def notes(version: str, text: str) -> str:
    """Raises SystemExit where the version can't be released yet."""
    known = sections(text)
    date, body = known.get(version, ("", ""))
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", date) or not body:
        raise SystemExit(
            f"CHANGELOG.md has no section `## {version} (YYYY-MM-DD)` with text; it has "
            + ", ".join(f"`## {name} ({of})`" for name, (of, _) in known.items())
        )
    return body


if __name__ == "__main__":
    print(notes(sys.argv[1], CHANGELOG.read_text(encoding="utf-8")))
