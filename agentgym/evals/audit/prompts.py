"""Whether prompts fit: their length in tokens of the policy that ships with the package, or estimated by characters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agentgym.evals.audit.findings import Report
from agentgym.models.tiny import policy_path
from agentgym.types import Task

CHARS_A_TOKEN = 3
TOKENS_A_MESSAGE = 6  # a chat template's own
TINY = "builtin:tiny"

Count = Callable[[str], int]


def counter() -> tuple[Count, str]:
    """How many tokens a text has, and by what that is counted."""
    try:
        from tokenizers import Tokenizer

        inner = Tokenizer.from_file(str(policy_path() / "tokenizer.json"))
    except (ImportError, OSError):
        return lambda text: len(text) // CHARS_A_TOKEN + 1, f"estimated, {CHARS_A_TOKEN} characters a token"
    return lambda text: len(inner.encode(text).ids), f"tokens of {TINY}"


def check_prompts(tasks: Iterable[Task], schemas: Sequence[Mapping[str, Any]], limit: int, report: Report) -> None:
    """Add a finding for prompts that leave no token of the limit. schemas: of the tools, which prompts contain."""
    count, by = counter()
    tools = count(json.dumps(list(schemas), default=repr)) if schemas else 0
    longest, which, too_long, total = 0, "", 0, 0
    for task in tasks:
        length = tools + sum(count(message["content"]) + TOKENS_A_MESSAGE for message in task.prompt)
        total += 1
        too_long += length >= limit
        if length > longest:
            longest, which = length, task.task_id
    report.figures["longest_prompt_tokens"] = float(longest)
    if too_long:
        report.add(
            "long_prompt",
            "prompts",
            f"{too_long} of {total} prompts have {limit} tokens or more ({by}); the longest, {which}, has {longest}. "
            "Make them shorter, or train with a larger rollout.max_episode_tokens and check with --max-tokens",
        )
