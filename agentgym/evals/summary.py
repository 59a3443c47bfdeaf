"""The summary of one saved evaluation, which the leaderboard, the page, comparisons and the status share."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import urlsplit

from agentgym.errors import UserError
from agentgym.evals.statistics import mean_interval, success_share
from agentgym.policies.outside.prices import PRICES, Prices, prices_of
from agentgym.runs.episode_index import FileIndex, build_index, index_path, mark_of, read_index
from agentgym.runs.evaluations import read_record
from agentgym.runs.folder import RunFolder
from agentgym.runs.notes import read_note
from agentgym.types import Json
from agentgym.yaml import flat, read_yaml, value_at

_CHECKPOINT = re.compile(r"(?P<run>.*)/checkpoints/step-\d+(/hf)?/?")
NOT_OF_RECIPE = ("model.path", "model.random_weights", "loop.seed", "sft.seed", "logging.", "eval.", "generator.",
                 "sandbox.", "launcher.", "hosts.", "policy.", "name")  # fmt: skip
"""Fields of a config by which two seeds of one recipe may differ."""
PLAYED = ("agent.", "rewards", "rollout.")
NOT_PLAYED = ("_s", ".max_retries", ".max_infra_error_share", ".branch_weights", ".cut_turns")
"""Ends of fields of these sections that say how long to wait, or that only training reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share of successes with its 95% interval over tasks. num: counted episodes, of which num_successes succeeded.

    value: the mean over tasks, which differs from num_successes / num where tasks have unequal numbers of episodes.
    """

    value: float
    low: float
    high: float
    num: int
    num_successes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PassShare:
    """pass@k over all tasks that have k counted episodes, with its 95% interval."""

    k: int
    value: float
    low: float
    high: float
    num_tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardMean:
    """A reward's mean over tasks. low, high: its 95% interval; None below two tasks. name: empty for the total.

    Among `measures` it is success in a category, `category.NAME`, or what the environment measures, `measure.NAME`.
    """

    name: str
    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSummary:
    """A finished evaluation in figures. None is unknown, and never 0.

    folder: of the run or the evaluation; file_step: which of its evaluations. policy: the name of what was measured.
    model: its path, of a checkpoint that of the weights with which training began. server: host and port of a served
    model. run, step, train_seed, recipe: of a checkpoint; recipe is a digest of the training's settings without its
    seed, so that seeds can be grouped. agent: the name of its scaffold; `chat` is none. settings: `field=value` of
    those that decide how episodes are played.
    num_broken: episodes that infrastructure broke; num_left_out: those unsupported, too long, or cut by time.
    rewards: first the total. prompt_tokens: of all requests, of a policy behind a server. tokens: sampled ones.
    Both are sums over all episodes, seconds and turns are means of an episode. estimated: a server did not count its
    tokens, so they and the cost are estimates. cost: None where no price is known.
    time: of the result, in seconds since the epoch.
    """

    folder: str
    file_step: int
    policy: str
    model: str
    server: str
    run: str
    run_dir: str
    step: int | None
    train_seed: int | None
    recipe: str
    agent: str
    settings: tuple[str, ...]
    environment: str
    version: int
    options: str
    data_hash: str
    num_tasks: int
    samples_per_task: int
    seed: int
    greedy: bool
    num_episodes: int
    num_broken: int
    num_left_out: int
    success: Share | None
    pass_at: tuple[PassShare, ...]
    rewards: tuple[RewardMean, ...]
    measures: tuple[RewardMean, ...]
    prompt_tokens: int | None
    tokens: int | None
    turns: float | None
    seconds: float | None
    estimated: bool
    cost: float | None
    currency: str
    sandbox: str
    tags: tuple[str, ...]
    note: str
    time: float

    @property
    def benchmark(self) -> str:
        """The environment with the options that were given to it."""
        return f"{self.environment} ({self.options})" if self.options else self.environment

    def to_mapping(self) -> dict[str, Json]:
        return cast("dict[str, Json]", asdict(self))

    @classmethod
    def from_mapping(cls, saved: Mapping[str, Any]) -> Self:
        """The inverse. Raises TypeError or KeyError for what another version wrote."""
        return cls(
            **{
                **saved,
                "success": Share(**saved["success"]) if saved["success"] else None,
                "pass_at": tuple(PassShare(**one) for one in saved["pass_at"]),
                "rewards": tuple(RewardMean(**one) for one in saved["rewards"]),
                "measures": tuple(RewardMean(**one) for one in saved["measures"]),
                "settings": tuple(saved["settings"]),
                "tags": tuple(saved["tags"]),
            }
        )


def files_of(folder: Path, step: int) -> tuple[str, ...]:
    """What the summary of an evaluation is made of, besides what `evals`, `checkpoints` and `episodes` list."""
    base = f"{folder}/evals/step-{step:06d}"
    names = ("config.yaml", "notes.json", f"../{PRICES}")
    return f"{base}.json", f"{base}.jsonl.gz", *(f"{folder}/{name}" for name in names)


def evaluation_summary(
    folder: RunFolder, step: int, *, within: Sequence[Path] | None = None
) -> EvaluationSummary | None:
    """The summary of a folder's evaluation of a step; None while it is not finished, and for a shard of one.

    within: as `summary_of` takes it.
    Raises UserError for files that can't be read, or that another version wrote.
    """
    record = read_record(folder, step)
    setup, result = record.get("setup"), record.get("result")
    if not isinstance(setup, Mapping) or not isinstance(result, Mapping) or setup.get("shard"):
        return None
    path = folder.evaluation_file(step, ".json")
    try:
        index = _index(folder.episode_file(step, evaluation=True))
        return summary_of(folder, step, setup, result, index, within=within)
    except UserError:  # it names its file, as of prices, which is that of many evaluations
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        raise UserError(f"can't read the evaluation {path}: {type(error).__name__}: {error}") from None


def summary_of(
    folder: RunFolder,
    step: int,
    setup: Mapping[str, Any],
    result: Mapping[str, Any],
    index: FileIndex | None,
    *,
    within: Sequence[Path] | None = None,
) -> EvaluationSummary:
    """The summary of an evaluation's record and the index of its episodes.

    within: the run of a checkpoint that was measured is not looked up outside of these folders; None: anywhere.
    Raises KeyError, TypeError, ValueError, AttributeError, OSError or UserError for what another version wrote.
    """
    config = folder.load_config() if (folder.path / "config.yaml").is_file() else {}
    note = read_note(folder.path, step)
    left_out = ("num_unsupported", "num_too_long", "num_cut")
    return EvaluationSummary(
        folder=str(folder.path),
        file_step=step,
        **_policy(folder, step, config, within),
        agent=str(value_at(config, "agent.name") or "chat"),
        settings=_settings(config),
        **{key: setup[key] for key in ("environment", "version", "data_hash", "num_tasks", "samples_per_task")},
        seed=setup["seed"],
        greedy=setup["greedy"],
        options=_options(config),
        num_episodes=result["num_episodes"],
        num_broken=result["num_infra_errors"],
        num_left_out=sum(result.get(key, 0) for key in left_out),
        success=_success(result),
        pass_at=tuple(
            PassShare(**{key: one[key] for key in ("k", "value", "low", "high", "num_tasks")})
            for one in result["pass_at"]
            if one["difficulty"] is None
        ),
        rewards=_rewards(result, index),
        measures=tuple(
            RewardMean(name=f"{kind}.{one['name']}", mean=one["value"], low=one["low"], high=one["high"])
            for kind, key in (("category", "by_category"), ("measure", "measures"))
            for one in result.get(key, ())  # older ones have none
        ),
        **_used(result, index, prices_of(config, folder.path)),
        sandbox=result.get("sandbox", ""),
        tags=note.tags,
        note=note.text,
        time=folder.evaluation_file(step, ".json").stat().st_mtime,
    )


def _policy(
    folder: RunFolder, step: int, config: Mapping[str, object], within: Sequence[Path] | None
) -> dict[str, Any]:
    """What was measured: a checkpoint, in its run's folder or elsewhere, or a model that no run made."""
    model = str(value_at(config, "model.path") or "")
    found = _CHECKPOINT.fullmatch(model)
    if found is None and folder.only_evaluates:
        name, server = model or folder.name, urlsplit(str(value_at(config, "policy.base_url") or "")).netloc
        unknown = {"run": "", "run_dir": "", "step": None, "train_seed": None, "recipe": ""}
        return {"policy": name, "model": name, "server": server.rpartition("@")[2], **unknown}
    run = Path(found["run"]) if found else folder.path
    if found:
        candidates = [run, folder.path.parent.parent / run]
        if within is not None:
            roots = [root.resolve() for root in within]
            candidates = [one for one in candidates if any(one.resolve().is_relative_to(root) for root in roots)]
        if there := [one for one in candidates if (one / "config.yaml").is_file()]:
            run, config = there[0], read_yaml(there[0] / "config.yaml")
        base = str(value_at(config, "model.path") or "")
        model = "" if base == model else base  # unknown once the run is gone
    seed = value_at(config, "sft.seed" if "sft" in config else "loop.seed")
    return {
        "policy": f"{run.resolve().name} step {step}",
        "model": model,
        "server": "",
        "run": run.resolve().name,
        "run_dir": str(run.resolve()),
        "step": step,
        "train_seed": seed if isinstance(seed, int) else None,
        "recipe": _digest({**_recipe(config), "model": model}) if model else "",
    }


def _recipe(config: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in flat(config).items() if not key.startswith(NOT_OF_RECIPE)}


def _digest(fields: Mapping[str, object]) -> str:
    text = json.dumps(fields, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _settings(config: Mapping[str, object]) -> tuple[str, ...]:
    fields = flat(config).items()
    return tuple(f"{key}={value}" for key, value in fields if key.startswith(PLAYED) and not key.endswith(NOT_PLAYED))


def _options(config: Mapping[str, object]) -> str:
    if name := value_at(config, "eval.benchmark"):
        return str(name)
    given = value_at(config, "env.options")
    return ", ".join(f"{key}={value}" for key, value in flat(given).items()) if isinstance(given, Mapping) else ""


def _success(result: Mapping[str, Any]) -> Share | None:
    if result["success"] is None:
        return None
    scores = [score for row in result["by_task"] for score in row if score is not None]
    return Share(
        value=result["success"], low=result["low"], high=result["high"], num=len(scores), num_successes=sum(scores)
    )


def _rewards(result: Mapping[str, Any], index: FileIndex | None) -> tuple[RewardMean, ...]:
    found = []
    if result["reward_mean"] is not None:
        low, high = result.get("reward_low"), result.get("reward_high")
        found.append(RewardMean(name="", mean=result["reward_mean"], low=low, high=high))
    if index is None or not index.locations:
        return tuple(found)
    columns = index.columns
    tasks: dict[str, dict[int, list[float | None]]] = {}
    for group, outcome, rewards in zip(columns["group"], columns["outcome"], columns["rewards"], strict=True):
        for name, value in rewards.items() if outcome != "infra_error" else ():
            tasks.setdefault(name, {}).setdefault(group, []).append(value)
    for name, rows in tasks.items():
        scores: Sequence[Sequence[float | None]] = list(rows.values())
        if any(value is not None for row in scores for value in row):
            low, high = mean_interval(scores)
            found.append(RewardMean(name=name, mean=success_share(scores), low=low, high=high))
    return tuple(found)


def _used(result: Mapping[str, Any], index: FileIndex | None, prices: Prices | None) -> dict[str, Any]:
    """Tokens, turns, time and cost."""
    columns = index.columns if index is not None and index.locations else {}
    usage = result.get("usage") or usage_in(columns)
    seconds = [value for value in columns.get("seconds", ()) if value is not None]
    turns = usage["turns"] / len(columns["turns"]) if usage and columns else _mean(columns.get("turns", ()))
    sampled = usage["completion_tokens"] if usage else sum(columns["tokens"]) if columns else None
    return {
        "prompt_tokens": int(usage["prompt_tokens"]) if usage else None,
        "tokens": None if sampled is None else int(sampled),
        "turns": turns,
        "seconds": _mean(seconds),
        "estimated": bool(usage.get("turns_estimated")),
        "cost": prices.cost(usage) if prices and usage else None,
        "currency": prices.currency if prices and usage else "",
    }


def usage_in(columns: Mapping[str, Sequence[Any]]) -> dict[str, int]:
    """The tokens and turns of episodes with a policy behind a server; empty for any other."""
    if all(asked is None for asked in columns.get("asked_tokens", ())):
        return {}
    names = {"prompt_tokens": "asked_tokens", "cached_tokens": "cached_tokens", "completion_tokens": "tokens"}
    return {name: sum(v or 0 for v in columns[column]) for name, column in {**names, "turns": "turns"}.items()}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _index(path: Path) -> FileIndex | None:
    """None where the episodes were removed to save room."""
    try:
        return read_index(index_path(path), mark_of(path)) or build_index(path)
    except FileNotFoundError:
        return None
