"""What a checkpoint keeps of the groups that were under way: those that had ended whole, of the others their turns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from agentgym.errors import UserError
from agentgym.routes import Routes
from agentgym.runs.files import read_json_lines, write_json_lines
from agentgym.runs.folder import RunFolder
from agentgym.runs.records import decode_saved, encode_group, restore_groups
from agentgym.types import Completion, FinishReason, Group, Json, VersionSpan

WEIGHTS = "weights"  # folder of a checkpoint: older versions, which sample some of these groups to their end


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTurn:
    """A completion that the same request gets again. seed: of the request. prompt: a digest of its context."""

    seed: int
    prompt: str
    completion: Completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A group that had not ended. version: of the weights when it began."""

    version: int
    turns: tuple[KeptTurn, ...]


@dataclass(slots=True, kw_only=True)
class InFlightGroups:
    """The groups in flight, by group id. ended: played and scored, and not yet trained or skipped."""

    ended: dict[int, Group] = field(default_factory=dict)
    begun: dict[int, Begun] = field(default_factory=dict)


def save_in_flight(run: RunFolder, step: int, next_group: int, groups: InFlightGroups) -> None:
    """Saves the groups in flight at the position (step, next_group), before the position is written."""
    records: list[dict[str, Json]] = [
        {
            "group_id": group_id,
            "episodes": cast(Json, encode_group(group, step=step, trained=True)),
            "always_trained": group.always_trained,
        }
        for group_id, group in groups.ended.items()
    ]
    records += [
        {"group_id": group_id, "version": begun.version, "turns": [_encode(turn) for turn in begun.turns]}
        for group_id, begun in groups.begun.items()
    ]
    write_json_lines(_path(run, step, next_group), records)


def load_in_flight(run: RunFolder, step: int, next_group: int) -> InFlightGroups:
    """Empty where none was saved. A group whose record is torn is left out, and is played again."""
    found, path = InFlightGroups(), _path(run, step, next_group)
    for record in read_json_lines(path) if path.is_file() else ():
        group_id = cast(int, record["group_id"])
        if "episodes" in record:
            saved = [decode_saved(one) for one in cast(Iterable[Mapping[str, Any]], record["episodes"])]
            [group] = restore_groups(saved)[0]
            group.always_trained = record.get("always_trained") is True
            found.ended[group_id] = group
        else:
            turns = tuple(_decode(turn) for turn in cast(Iterable[Mapping[str, Any]], record["turns"]))
            found.begun[group_id] = Begun(version=cast(int, record["version"]), turns=turns)
    return found


def weight_files(run: RunFolder, step: int) -> Path:
    """The folder of the older weights that a checkpoint keeps."""
    return run.checkpoint_dir(step) / WEIGHTS


def check_weights(run: RunFolder, step: int, versions: Iterable[int]) -> None:
    """Raises UserError when a version before `step` is missing."""
    missing = [v for v in sorted({*versions} - {step}) if not (weight_files(run, step) / f"{v}.safetensors").is_file()]
    if missing:
        raise UserError(f"its groups are sampled by weights of version {missing}, which are not with it")


def _path(run: RunFolder, step: int, next_group: int) -> Path:
    return run.checkpoint_dir(step) / f"in-flight-{next_group}.jsonl.gz"


def _encode(turn: KeptTurn) -> dict[str, Json]:
    completion = turn.completion
    return {
        "seed": turn.seed,
        "prompt": turn.prompt,
        "completion_ids": completion.completion_ids,
        "logprobs": completion.logprobs,
        "versions": [(span.version, span.start, span.end) for span in completion.versions],
        "finish_reason": completion.finish_reason,
        "routes": completion.routes.to_text() if completion.routes else None,
    }


def _decode(record: Mapping[str, Any]) -> KeptTurn:
    completion = Completion(
        completion_ids=tuple(record["completion_ids"]),
        logprobs=tuple(record["logprobs"]),
        versions=tuple(VersionSpan(version=v, start=start, end=end) for v, start, end in record["versions"]),
        finish_reason=FinishReason(record["finish_reason"]),
        routes=Routes.of_text(record["routes"]) if record.get("routes") else None,
    )
    return KeptTurn(seed=record["seed"], prompt=record["prompt"], completion=completion)
