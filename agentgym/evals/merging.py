"""Makes one evaluation of the shards that several machines have played, equal to one that played all tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from agentgym.errors import UserError
from agentgym.evals.play import EvalResult, EvalSetup, eval_episode, summarize
from agentgym.evals.shard import Shard
from agentgym.policies.outside.prices import prices_of
from agentgym.runs.evaluations import EvaluationFiles, read_record
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.runs.own import is_own, mark_run
from agentgym.sandbox import Capabilities
from agentgym.types import Episode
from agentgym.yaml import flat

MACHINE = ("eval.shard", "logging.", "launcher.", "hosts", "generator.replicas", "generator.gpus", "policy.base_url",
           "policy.api_key_env", "policy.concurrency", "policy.timeout_s", "policy.max_", "policy.requests_",
           "policy.tokens_", "policy.price_", "policy.currency", "policy.cache")  # fmt: skip
"""Fields of a config that may be different on each machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A finished shard."""

    folder: RunFolder
    step: int
    shard: Shard
    setup: EvalSetup
    weights: str
    result: EvalResult
    config: dict[str, object]

    @property
    def path(self) -> str:
        return str(self.folder.path)


def merge_shards(paths: Sequence[Path], output: Path) -> tuple[EvalResult, RunFolder]:
    """Writes the evaluation into a new folder; the shards stay.

    Raises UserError for shards that are not finished, are of different recipes, or are not one of each.
    """
    if output.exists():
        raise UserError(f"there is a folder {str(output)!r} already; choose another --output")
    parts = [_read(path) for path in paths]
    first = parts[0]
    for part in parts[1:]:
        if different := _differences(first, part):
            raise UserError(
                f"{first.path} and {part.path} are shards of different evaluations: {'; '.join(different)}. Merge "
                "those that one recipe has played"
            )
    _check_all_there(parts)
    setup = replace(first.setup, shard="")
    rows = _rows(parts, setup)
    result = _merged_result(parts, summarize(rows, first.result.checkpoint))
    with RunFolder.create(output.parent, output.name) as folder:
        config = {**first.config, "eval": {**cast("dict[str, object]", first.config["eval"]), "shard": ""}}
        folder.save_config(config, first.folder.load_sources())
        if is_own(first.folder.path):  # else its code is still somebody else's
            mark_run(folder.path)
        for part in parts:
            if sandbox := part.folder.load_sandbox():
                names = Capabilities.__dataclass_fields__
                folder.save_sandbox(Capabilities(**{k: v for k, v in cast("Any", sandbox).items() if k in names}))
        folder.event(f"merged from {', '.join(part.path for part in parts)}")
        files = EvaluationFiles(folder, first.step, first.weights)
        files.save_episodes(rows)
        result = result.priced(prices_of(config, folder.path))
        files.save_result(setup.to_mapping(), result.to_mapping())
        folder.set_status(RunStatus.DONE)
    return result, folder


def _read(path: Path) -> _Part:
    folder = RunFolder.open(path)
    steps = folder.episode_steps(evaluation=True)
    record = read_record(folder, steps[-1]) if steps else {}
    saved, result = record.get("setup"), record.get("result")
    if not isinstance(saved, Mapping) or len(steps) != 1 or not folder.only_evaluates:
        raise UserError(f"{str(path)!r} is not a shard: give folders that `agentgym eval --shard K/N` has made")
    setup = EvalSetup.from_mapping(saved)
    if not setup.shard:
        raise UserError(f"{str(path)!r} is not a shard: it plays all of its {setup.num_tasks} tasks")
    if not isinstance(result, Mapping) or folder.status().status is not RunStatus.DONE:
        raise UserError(
            f"shard {setup.shard} in {str(path)!r} is not finished; continue it where it was played: "
            f"agentgym eval --resume {path}"
        )
    return _Part(
        folder=folder,
        step=steps[0],
        shard=Shard.read(setup.shard),
        setup=setup,
        weights=str(record.get("weights") or ""),
        result=EvalResult.from_mapping(result),
        config=folder.load_config(),
    )


def _differences(a: _Part, b: _Part) -> list[str]:
    """What the two have not in common, by name, with both values; a checkpoint's path may differ by machine."""
    found = []
    if a.shard.total != b.shard.total:
        found.append(f"shards: one of {a.shard.total} and one of {b.shard.total}")
    if a.weights != b.weights:
        found.append("weights: they are not the same files")
    setups = [replace(part.setup, shard="").to_mapping() for part in (a, b)]
    found += [f"{key}: {value!r} and {setups[1][key]!r}" for key, value in setups[0].items() if value != setups[1][key]]
    configs = [flat(part.config) for part in (a, b)]
    same = ("model.path",) if a.weights and a.weights == b.weights else ()
    keys = [key for key in {**configs[0], **configs[1]} if not key.startswith(MACHINE) and key not in same]
    values = {key: [config.get(key) for config in configs] for key in keys}
    return found + [f"{key}: {one!r} and {other!r}" for key, (one, other) in values.items() if one != other]


def _check_all_there(parts: Sequence[_Part]) -> None:
    total = parts[0].shard.total
    by_number: dict[int, _Part] = {}
    for part in parts:
        if other := by_number.get(part.shard.number):
            raise UserError(f"shard {part.setup.shard} is given twice: {other.path} and {part.path}; give one of them")
        by_number[part.shard.number] = part
    if missing := [f"{number}/{total}" for number in range(1, total + 1) if number not in by_number]:
        are = "shards are" if len(missing) > 1 else "a shard is"
        raise UserError(f"{are} missing: {', '.join(missing)}; {len(parts)} of {total} are given")


def _rows(parts: Sequence[_Part], setup: EvalSetup) -> list[list[Episode]]:
    """The episodes of all tasks, in the order of one evaluation. Raises UserError where one is missing or twice."""
    found: dict[str, Episode] = {}
    for part in parts:
        own = {eval_episode(n, sample) for n in part.setup.numbers for sample in range(setup.samples_per_task)}
        saved = [one.episode for one in part.folder.read_episodes(part.step, evaluation=True)]
        if len(saved) != len(own) or {episode.episode_id for episode in saved} != own:
            raise UserError(
                f"{part.path} is damaged: it has {len(saved)} of the {len(own)} episodes of shard {part.setup.shard}; "
                "copy that folder again from where it was played"
            )
        found |= {episode.episode_id: episode for episode in saved}
    samples = range(setup.samples_per_task)
    return [[found[eval_episode(number, sample)] for sample in samples] for number in range(setup.num_tasks)]


def _merged_result(parts: Sequence[_Part], result: EvalResult) -> EvalResult:
    """With what the shards took together: sums of tokens, costs and counts; of a sandbox's times the longest."""
    usage, metrics = dict[str, float](), dict[str, float]()
    for part in parts:
        own = part.result.sandbox_metrics
        usage |= {key: usage.get(key, 0) + value for key, value in part.result.usage.items()}
        for key, value in own.items():
            counts = key.endswith("_total") or f"{key}_total" in own
            metrics[key] = metrics.get(key, 0) + value if counts else max(metrics.get(key, 0), value)
    first = parts[0].result
    result = replace(result, num_asked=first.num_asked, split_note=first.split_note)
    return replace(result, sandbox=first.sandbox, sandbox_metrics=metrics, usage=usage)
