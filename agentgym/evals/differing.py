"""What differs between saved evaluations: why they can't be compared, and one table of all that is not the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.evals.compare import Saved, other_rewards, rewards_text
from agentgym.yaml import flat

NUM_NAMED = 3  # tasks that a message names
NOT_COMPARED = ("model.path", "model.random_weights", "logging.", "rewards", "env.name", "eval.tasks",
                "policy.base_url", "policy.api_key_env", "policy.concurrency", "policy.timeout_s", "policy.max_",
                "policy.requests_", "policy.tokens_", "policy.price_", "policy.currency", "policy.cache")  # fmt: skip
"""Settings of a config that say nothing, or that the table has by another name."""
SECTIONS = (("policy", "step", "model.", "policy.", "agent."), ("environment", "env.", "sandbox.", "plugins."),
            ("split", "tasks", "data", "eval."), ("rollout.", "generator."), ("rewards",))  # fmt: skip
"""The order of the table; training settings are the rest."""
PLAYED = tuple(key for section in SECTIONS for key in section if key != "generator.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Differing:
    """A setting that differs, and its value on each side; "-" where it has none."""

    field: str
    values: tuple[str, ...]


def differing(sides: Sequence[Saved]) -> list[Differing]:
    """All that is not the same on all sides: the policy first, then environment, tasks, sampling, rewards, training.

    Training settings are compared among sides that a run trained.
    """
    columns = [_settings(side) for side in sides]
    digests = [{task: side.digests[task] for task in sorted(side.digests)} for side in sides]
    if all(other_rewards(sides[0], side) == "" for side in sides[1:]):
        for column in columns:
            del column["rewards"]
    for column, own in zip(columns, digests, strict=True):
        changed = [task for task, one in own.items() if digests[0].get(task, one) != one]
        column["data"] = f"{len(changed)} tasks with another prompt or answer{_some(changed)}" if changed else "-"
        more, less = ([*(a.keys() - b.keys())] for a, b in ((own, digests[0]), (digests[0], own)))
        column["tasks"] = f"{len(own)}" + (f", {len(more)} not in the first{_some(sorted(more))}" if more else "")
        column["tasks"] += f", {len(less)} of the first missing" if less else ""
    found = []
    for key in sorted(dict.fromkeys(key for column in columns for key in column), key=_rank):
        trained = [side.is_trained or key.startswith(PLAYED) for side in sides]
        values = [column.get(key, "-") if kept else "-" for column, kept in zip(columns, trained, strict=True)]
        if len({value for value, kept in zip(values, trained, strict=True) if kept}) > 1:
            found.append(Differing(field=key, values=tuple(values)))
    return found


def _settings(side: Saved) -> dict[str, str]:
    config = {key: str(value) for key, value in flat(side.config).items() if not key.startswith(NOT_COMPARED)}
    setup = side.setup
    return {
        "policy": side.result.checkpoint,
        "step": str(side.step),
        **config,
        "environment": f"{setup.environment}, version {setup.version}",
        "split": side.split,
        "eval.samples_per_task": str(setup.samples_per_task),
        "eval.seed": str(setup.seed),
        "eval.greedy": str(setup.greedy),
        "rewards": rewards_text(side),
    }


def _rank(key: str) -> int:
    return next((at for at, section in enumerate(SECTIONS) if key.startswith(section)), len(SECTIONS))


def mismatches(first: Saved, second: Saved) -> list[str]:
    """Why the two did not play the same; empty when every difference between them is the policy's."""
    a, b = first.setup, second.setup
    found = []
    if a.environment != b.environment:
        found.append(f"environments: {a.environment} and {b.environment}")
    elif a.version != b.version:
        found.append(f"versions of {a.environment}: {a.version} and {b.version}")
    if first.split != second.split:
        found.append(f"splits: {first.split} and {second.split}")
    only = [sorted(x.keys() - y.keys()) for x, y in ((first.digests, second.digests), (second.digests, first.digests))]
    if any(only):
        both = len(first.digests.keys() & second.digests.keys())
        found.append(
            f"tasks: {both} are in both, {len(only[0])} in the first alone{_some(only[0])}, "
            f"{len(only[1])} in the second alone{_some(only[1])}"
        )
    changed = sorted(t for t in first.digests.keys() & second.digests.keys() if first.digests[t] != second.digests[t])
    if changed:
        found.append(f"data: {len(changed)} tasks have another prompt or answer{_some(changed)}")
    if a.seed != b.seed:
        found.append(f"seeds: eval.seed is {a.seed} and {b.seed}")
    options = [{k: v for k, v in flat(side.config).items() if k.startswith("env.options")} for side in (first, second)]
    if found and options[0] != options[1]:
        keys = [key for key in {**options[0], **options[1]} if options[0].get(key) != options[1].get(key)]
        found += [f"{key}: {options[0].get(key, '-')} and {options[1].get(key, '-')}" for key in keys]
    return found


def _some(tasks: Sequence[str]) -> str:
    more = ", ..." if len(tasks) > NUM_NAMED else ""
    return f" ({', '.join(tasks[:NUM_NAMED])}{more})" if tasks else ""
