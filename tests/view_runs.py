"""Folders of runs for the tests of the view: written by what a run writes with, not by a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agentgym.evals.play import EvalSetup, summarize
from agentgym.runs.evaluations import EvaluationFiles
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.types import (
    Episode,
    ErrorRecord,
    FinishReason,
    Group,
    Json,
    Outcome,
    Stop,
    Task,
    ToolTrace,
    Turn,
    VersionSpan,
)

HOSTILE = '<script>document.title="gone"</script><img src=x onerror=alert(1)>\u202eevil\ud800 \x00'


def task(number: int, text: str = "") -> Task:
    prompt = ({"role": "user", "content": text or f"what follows {number}?"},)
    return Task(task_id=f"count-{number}", prompt=prompt, answer=number + 1, difficulty=number % 3)


def turn(prompt: Sequence[int], completion: Sequence[int], *, old: int, new: int) -> Turn:
    """Its first half is sampled by the version `old`, the rest by `new`."""
    half = len(completion) // 2
    spans = [VersionSpan(version=old, start=0, end=half), VersionSpan(version=new, start=half, end=len(completion))]
    if old == new or not half:
        spans = [VersionSpan(version=new, start=0, end=len(completion))]
    return Turn(
        prompt_ids=tuple(prompt),
        completion_ids=tuple(completion),
        logprobs=tuple(-0.125 * (at + 1) for at in range(len(completion))),
        versions=tuple(spans),
        finish_reason=FinishReason.STOP,
    )


def episode(
    number: int, index: int, *, success: bool, old: int = 0, new: int = 0, name: str = "", text: str = ""
) -> Episode:
    """Two turns: [1, 2, 3] -> [10, 11], then [4] of the environment -> [12, 13, 14]."""
    first = turn((1, 2, 3), (10, 11), old=old, new=new)
    second = turn((1, 2, 3, 10, 11, 4), (12, 13, 14 + index), old=new, new=new)
    said = text or ("four" if success else f"five, {index}")
    one = task(number)
    return Episode(
        episode_id=name or f"g{number:06d}-e{index:02d}",
        task=one,
        seed=2**60 + index,
        messages=[
            *one.prompt,
            {"role": "assistant", "content": "let me add", "tool_calls": [_CALL]},
            {"role": "tool", "content": "3", "name": "add", "tool_call_id": "call00000"},
            {"role": "assistant", "content": said},
        ],
        turns=[first, second],
        tool_calls=[ToolTrace(turn=1, name="add", arguments={"a": 1, "b": 2}, result="3", seconds=0.25)],
        info={"success": success, "verdicts": [{"status": "ok", "wall_s": 0.5, "error": "", "passed": 2}]},
        stop=Stop.DONE if success else Stop.MAX_TURNS,
        rewards={"exact": float(success), "format": None},
        reward=float(success),
        outcome=Outcome.SCORED,
        timing_s={"episode_s": 0.5 + index, "generate_s": 0.25},
    )


_CALL: Json = {"type": "function", "id": "call00000", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}


def broken(number: int, index: int) -> Episode:
    error = ErrorRecord(source="sandbox", kind="TimeoutError", message=HOSTILE)
    return Episode(
        episode_id=f"g{number:06d}-e{index:02d}", task=task(number), seed=index, stop=Stop.ERROR,
        outcome=Outcome.INFRA_ERROR, error=error, messages=[*task(number).prompt],
    )  # fmt: skip


def group(number: int, *, size: int = 4, wins: int = 2, version: int = 0, newest: int = 0) -> Group:
    """Its first `wins` episodes succeed. Tokens are of `version` and then of `newest`."""
    episodes = [episode(number, i, success=i < wins, old=version, new=newest) for i in range(size)]
    advantages = [1.0 if i < wins else -1.0 for i in range(size)]
    return Group(group_id=number, task=task(number), start_version=version, episodes=episodes, advantages=[*advantages])


def write_step(folder: RunFolder, step: int, *, groups: int = 2, wins: int = 2, skipped: int = 1) -> None:
    """As a run does after a step: its metrics, then its episodes."""
    old, new = max(0, step - 2), step - 1
    first = (step - 1) * (groups + skipped)
    trained = [group(first + i, wins=wins, version=old, newest=new) for i in range(groups)]
    left = [replace_wins(group(first + groups + i, wins=0, version=new, newest=new)) for i in range(skipped)]
    metrics = {
        "rollout/episodes": 4.0 * (groups + skipped),
        "rollout/success_mean": groups * wins / (4 * (groups + skipped)),
        "rollout/reward_mean": wins / 4,
        "rollout/infra_errors": 0.0,
        "loop/groups": float(groups),
        "loop/skipped_groups": float(skipped),
        "loop/staleness_max": float(new - old),
        "train/loss": 1 / step,
        "train/entropy": float("nan"),
        "time/step_s": 2.0,
        "time/generate_s": 1.5,
        "time/sandbox_s": 0.25,
        "time/train_s": 0.5,
        "time/compute_share": 0.875,
    }
    folder.append_metrics(step, metrics)
    folder.save_groups(step, trained, left)


def replace_wins(one: Group) -> Group:
    """A group without signal."""
    one.advantages = [0.0] * len(one.episodes)
    return one


def write_evaluation(folder: RunFolder, step: int, wins: int, *, tasks: int = 8, seed: int = 1, cut: int = 0) -> None:
    """Two samples a task; those of the first `wins` tasks succeed, and those of the last `cut` are cut by time."""
    limit = "rollout.generate_timeout_s = 60"
    record = ErrorRecord(source="episode", kind="cut", message=limit)
    too_slow = {"outcome": Outcome.INFRA_ERROR, "reward": None, "time_limit": limit, "error": record}
    setup = EvalSetup(
        environment="counting", version=1, data_hash="x", num_tasks=tasks, samples_per_task=2, seed=seed, greedy=False
    )  # fmt: skip
    rows = [
        [
            replace(
                episode(n, s, success=n < wins, old=step, new=step, name=f"eval-{n:04d}-{s:02d}"),
                seed=10 * n + s,
                **(too_slow if n >= tasks - cut else {}),
            )
            for s in range(2)
        ]
        for n in range(tasks)
    ]
    files = EvaluationFiles(folder, step)
    files.begin(setup.to_mapping(), resume=False)
    files.save_episodes(rows)
    files.save_result(setup.to_mapping(), summarize(rows, f"step-{step:06d}").to_mapping())


CONFIG = {
    "model": {"path": "builtin:tiny"},
    "env": {"name": "counting", "options": {}},
    "rewards": {"exact": 1.0},
    "loop": {"steps": 4, "max_staleness": 1},
}


def write_run(runs_dir: Path, name: str, *, steps: int = 3, done: bool = True) -> RunFolder:
    """A run of `steps` steps with an evaluation before the first and after the last; open, and so running, or done."""
    folder = RunFolder.create(runs_dir, name)
    folder.save_config(CONFIG, {"loop.steps": "command line"})
    folder.event("started")
    write_evaluation(folder, 0, wins=2)
    for step in range(1, steps + 1):
        write_step(folder, step)
    write_evaluation(folder, steps, wins=7)
    if done:
        folder.set_status(RunStatus.DONE)
        folder.event("done")
        folder.close()
    return folder
