"""Whether two runs of one recipe are the same run: their metrics, episodes and checkpoints."""

from __future__ import annotations

from agentgym.runs.folder import RunFolder

OF_TIMES = ("time", "train/time/", "generator/", "sandbox/", "workers/")


def differences(one: RunFolder, other: RunFolder) -> list[str]:
    """What differs between two runs that should be one; empty where nothing does."""
    found = []
    rows, of_other = ({row.step: row for row in run.read_metrics()} for run in (one, other))
    if rows.keys() != of_other.keys() or not rows:
        return [f"steps {sorted(rows)} and {sorted(of_other)}"]
    for step, row in rows.items():
        names = row.metrics.keys() | of_other[step].metrics.keys()
        figures = [n for n in sorted(names) if not n.startswith(OF_TIMES) and not n.endswith("_s")]
        found += [
            f"step {step}: {name} is {row.metrics.get(name)} and {of_other[step].metrics.get(name)}"
            for name in figures
            if row.metrics.get(name) != of_other[step].metrics.get(name)
        ]
        pairs = zip(_episodes(one, step), _episodes(other, step), strict=False)
        found += [f"step {step}: episode {a[0]} differs" for a, b in pairs if a != b]
        if len(_episodes(one, step)) != len(_episodes(other, step)):
            found.append(f"step {step}: another number of episodes")
    for step in sorted({*one.checkpoint_steps()} & {*other.checkpoint_steps()}):
        for path in sorted(one.checkpoint_dir(step).rglob("*")):
            name = path.relative_to(one.checkpoint_dir(step))
            if path.suffix in (".safetensors", ".distcp"):
                copy = other.checkpoint_dir(step) / name
                if not copy.is_file() or copy.read_bytes() != path.read_bytes():
                    found.append(f"the checkpoint of step {step}: {name} differs")
    return found


def _episodes(run: RunFolder, step: int) -> list[tuple[object, ...]]:
    return [
        (
            saved.episode.episode_id,
            saved.episode.task,
            saved.episode.turns,
            saved.episode.rewards,
            saved.episode.reward,
            saved.advantage,
            saved.trained,
            saved.start_version,
        )
        for saved in run.read_episodes(step)
    ]
