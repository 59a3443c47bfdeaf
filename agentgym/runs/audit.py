"""Reads a run's folder as a stranger would and lists what is wrong with it: nothing twice, nothing lost, nothing half.

It shares no code with what writes the folder, and believes no index or summary where the thing itself can be counted.
A run that is not done is judged up to its newest whole checkpoint, since a resume undoes the steps after that. A custom
loop's is judged by what is there: it may train any groups, and save and evaluate when it likes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentgym.runs.audit_evaluations import judge_evaluations
from agentgym.runs.audit_files import Audit, Played, by_step, gaps, ranges, read_episodes, read_lines, read_record
from agentgym.runs.audit_settings import Settings, Starts
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.runs.leftovers import left_outside
from agentgym.runs.untrusted import MAX_NUMBER, Damaged, damage, number, read_object, safetensors_size

PARTS = ("*.part", "*.part.*", "*.partial", ".*.tmp")  # names of what was being written


def audit(path: str | Path) -> Audit:
    """Raises UserError for a folder that holds no run. One that is still written is judged as an unfinished one."""
    folder = RunFolder.open(path)
    status = folder.status().status
    found = Audit(status=status.value)
    if folder.is_evaluation:
        judge_evaluations(folder.path, found, alone=True)
    else:
        _training(folder.path, status, found)
    if status is RunStatus.DONE:
        for part in sorted({part for pattern in PARTS for part in folder.path.rglob(pattern)}):
            where = str(part.relative_to(folder.path))
            if where in found.interrupted:
                continue
            found.fault("left behind", where, "it was being written when something ended")
    if status is not RunStatus.RUNNING:
        for where, text in left_outside(folder.path):
            found.fault("left behind", where, text)
    return found


def _training(path: Path, status: RunStatus, found: Audit) -> None:
    starts = Starts.of(path, found.note)
    rows = _metrics(path, found)
    whole = _checkpoints(path, found, done=status is RunStatus.DONE, running=status is RunStatus.RUNNING)
    last = max((step for step, _ in rows), default=0)
    found.steps = last if status is RunStatus.DONE else max(whole, default=0)
    if starts.built_in:
        _continuous(rows, found)
    else:
        found.note("a custom loop's run: which steps, groups, checkpoints and evaluations it should have is unknown")
    if starts.save_episodes:
        _episodes(path, dict(rows), starts, whole, found)
    else:
        found.note("logging.save_episodes is false: what was trained can't be counted")
    judge_evaluations(path, found)
    if status is RunStatus.DONE and starts.built_in:
        _ended(path, starts.last, whole, last, found)


def _metrics(path: Path, found: Audit) -> list[tuple[int, Mapping[str, Any]]]:
    """The rows as they lie in the file, by step."""
    rows: list[tuple[int, Mapping[str, Any]]] = []
    for line, row in read_lines(path / "metrics.jsonl", "metrics.jsonl", found):
        try:
            rows.append((number((row or {}).get("step"), MAX_NUMBER), row or {}))
        except Damaged:
            found.note(f"metrics.jsonl: line {line} is torn")
    return rows


def _continuous(rows: list[tuple[int, Mapping[str, Any]]], found: Audit) -> None:
    times = Counter(step for step, _ in rows)
    for first, last in gaps(times, 1, found.steps):
        text = f"step {first} has no row" if first == last else f"steps {first} to {last} have no row"
        found.fault("metrics", "metrics.jsonl", text)
    for step, count in sorted(times.items()):
        if count > 1 and 1 <= step <= found.steps:
            found.fault("metrics", "metrics.jsonl", f"step {step} has {count} rows")
    judged = [step for step, _ in rows if step <= found.steps]
    if judged != sorted(judged):
        found.fault("metrics", "metrics.jsonl", "its rows are not in the order of the steps")


def _episodes(
    path: Path, rows: Mapping[int, Mapping[str, Any]], starts: Starts, whole: Mapping[int, int], found: Audit
) -> None:
    """Every group is in one step, whole; together they are all groups up to the last one taken."""
    step_of: dict[int, int] = {}
    seen: dict[str, int] = {}
    files = by_step(path / "episodes", r"step-(\d{1,9})\.jsonl(?:\.gz)?", found)
    extra, end = sorted(step for step in files if step > found.steps), found.steps
    if found.status == RunStatus.DONE and extra == [end + 1] and _is_untrained(files[extra[0]]):
        end += 1  # the groups after which nothing was left to learn
    elif found.status == RunStatus.DONE and extra:
        found.fault("twice", f"episodes/{files[extra[0]].name}", f"the run ended at step {found.steps}")
    for first, last in gaps(files, 1, found.steps) if starts.built_in else ():
        text = f"step {first} has no episodes" if first == last else f"steps {first} to {last} have no episodes"
        found.fault("lost", "episodes", text)
    for step in sorted(step for step in files if 1 <= step <= end):
        where, groups, trained = f"episodes/{files[step].name}", defaultdict[int, set[int]](set), set[int]()
        settings, count = starts.at(step), 0
        for one in read_episodes(files[step], where, found):
            if one.name in seen:
                found.fault("twice", where, f"episode {one.name} is in step {seen[one.name]} and in step {step}")
            if step_of.setdefault(one.group, step) != step and one.group not in groups:
                found.fault("twice", where, f"group {one.group} is in step {step_of[one.group]} and in step {step}")
            seen[one.name] = step
            groups[one.group].add(one.index)
            count += 1
            if one.trained:
                trained.add(one.group)
                found.trained += 1
                _fresh(one, step, settings.max_staleness, where, found)
            else:
                found.skipped += 1
        for group, indices in groups.items():
            size = settings.group_size or len(indices)
            if missing := [*gaps(indices, 0, size - 1)]:
                found.fault("lost", where, f"group {group} lacks its episodes {ranges(missing)}")
        _as_counted(rows.get(step, {}), count, len(trained), where, found)
    if starts.built_in:
        _no_gap(step_of, whole, found)


def _is_untrained(file: Path) -> bool:
    """Whether nothing in the file was trained, and no line is damaged."""
    unread = Audit(status="")
    trained = [one.trained for one in read_episodes(file, file.name, unread)]
    return not unread.findings and not any(trained)


def _no_gap(step_of: Mapping[int, int], whole: Mapping[int, int], found: Audit) -> None:
    """whole: the next group of each checkpoint, which says how far the run had got."""
    taken = max(max(step_of, default=-1) + 1, max((n for s, n in whole.items() if s <= found.steps), default=0))
    if lost := [*gaps(step_of, 0, taken - 1)]:
        count = sum(b - a + 1 for a, b in lost)
        found.fault("lost", "episodes", f"{count} of {taken} groups are in no step: {ranges(lost)}")


def _fresh(one: Played, step: int, bound: int | None, where: str, found: Audit) -> None:
    versions = one.versions
    if versions and max(versions) >= step:
        text = f"episode {one.name} was sampled by version {max(versions)}, but trained by step {step}"
        found.fault("stale", where, text)
    elif versions and bound is not None and step - 1 - min(versions) > bound:
        text = f"episode {one.name} is {step - 1 - min(versions)} versions old; allowed are {bound}"
        found.fault("stale", where, text)


def _as_counted(row: Mapping[str, Any], episodes: int, groups: int, where: str, found: Audit) -> None:
    for key, count in (("rollout/episodes", episodes), ("loop/groups", groups)):
        if row.get(key, count) != count:
            found.fault(
                "lost", where, f"it holds {count} {key.partition('/')[2]}, its metrics count {_count(row[key])}"
            )


def _count(value: object) -> str:
    return f"{value:.0f}" if isinstance(value, (int, float)) else repr(value)


def _checkpoints(path: Path, found: Audit, *, done: bool, running: bool) -> dict[int, int]:
    """The next group of each whole checkpoint's position. The newest of a run that is not done may be half."""
    whole: dict[int, int] = {}
    half: list[tuple[int, str]] = []
    for step, folder in by_step(path / "checkpoints", r"step-(\d{1,9})", found).items():
        try:
            with damage():
                whole[step] = _next_group(folder, step)
        except FileNotFoundError as error:
            half.append((step, f"{Path(str(error.filename)).relative_to(folder)} is missing"))
        except Damaged as error:
            half.append((step, str(error)))
    found.checkpoints = [*whole]
    for step, problem in half:
        if done or (step < max(whole, default=0) and not running):
            found.fault("checkpoint", f"checkpoints/step-{step:06d}", f"it is half: {problem}")
        else:
            found.note(f"the checkpoint of step {step} is half, as its save was interrupted: {problem}")
    return whole


def _next_group(folder: Path, step: int) -> int:
    """The next group of a whole checkpoint. Raises Damaged, or FileNotFoundError, for what is missing of it."""
    by_hand = (folder / "loop.pickle").exists()  # of a custom loop; it is never read here
    position = {"step": step, "next_group": 0} if by_hand else read_object(folder / "position.json")
    if position["step"] != step:
        raise Damaged(f"its position is of step {position['step']}")
    manifest = read_object(folder / "trainer" / "manifest.json")
    if manifest["step"] != step:
        raise Damaged(f"the trainer's state is of step {manifest['step']}")
    for name, (size, _) in manifest["files"].items():
        if (there := (folder / "trainer" / name).stat().st_size) != size:
            raise Damaged(f"trainer/{name} has {there} of {size} bytes")
    weights = sorted((folder / "hf").glob("*.safetensors"))
    if not weights:
        raise Damaged("hf has no weights")
    for file in weights:
        there, announced = safetensors_size(file)
        if there != announced:
            raise Damaged(f"hf/{file.name} has {there} of {announced} bytes")
    return number(position["next_group"], MAX_NUMBER)


def _ended(path: Path, settings: Settings, whole: Mapping[int, int], last: int, found: Audit) -> None:
    """What a run that says that it is done must have."""
    if last not in whole:
        found.fault("checkpoint", "checkpoints", f"the run ended at step {last}, which has no whole checkpoint")
    if (state := read_record(path / "state.json", "state", found)) is not None:
        position = state.get("position")
        step = position.get("step") if isinstance(position, Mapping) else None
        if step != last:
            found.fault("state", "state.json", f"it is of step {step}, the run ended at step {last}")
    if settings.measures_end and last:
        compared = read_record(path / "comparison.json", "evaluation", found)
        if compared is not None and compared.get("steps") != last:
            found.fault("evaluation", "comparison.json", f"the checkpoint of step {last} was not compared")
