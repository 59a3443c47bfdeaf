"""The table of docs/models.md: `python -m agentgym.families.table docs/models.md` writes it there."""

from __future__ import annotations

import sys
from pathlib import Path

from agentgym.families.family import DENSE_TARGETS, Family
from agentgym.families.registry import families

OPENING, CLOSING = "<!-- families -->", "<!-- /families -->"
COLUMNS = ("`model_type`", "trainer engines", "packing", "LoRA on", "QLoRA", "experts", "generator engines")


def markdown() -> str:
    """A row for each record, in the order of their names."""
    records = {family.model_types: family for family in families().values()}
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(_row(records[key]) for key in sorted(records))]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def written(page: str) -> str:
    """The page with the table of today. Raises ValueError for one without the markers."""
    head, opening, rest = page.partition(OPENING)
    _, closing, tail = rest.partition(CLOSING)
    if not opening or not closing:
        raise ValueError(f"the page has no {OPENING} with {CLOSING} after it; add both where the table is to be")
    return f"{head}{OPENING}\n{markdown()}\n{CLOSING}{tail}"


def _row(family: Family) -> tuple[str, ...]:
    dense = family.dense is not None
    masks = "packed" if family.masks == "positions" else "packed, by our masks"
    return (
        ", ".join(f"`{name}`" for name in family.model_types),
        "titan, transformers" if dense or family.mixture else "transformers",
        "a sample a row" if family.packs == "row" else masks,
        "all" if family.adapter_targets == DENSE_TARGETS else ", ".join(f"`{name}`" for name in family.adapter_targets),
        "" if family.router else "nf4",
        "router trained, frozen or replayed" if family.router else "",
        "native, transformers, vLLM" if dense else "transformers, vLLM",
    )


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
