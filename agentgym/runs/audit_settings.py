"""The settings that a run had at each of its steps: a resume may change them, and what was asked of it meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentgym.errors import UserError
from agentgym.runs.untrusted import MAX_NUMBER, Damaged, read_objects, read_text
from agentgym.yaml import parse_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The recipe's settings that bound what may be found; None if unknown."""

    saves_episodes: bool
    """Whether every step saves its episodes."""
    measures_end: bool
    """Whether the run ends with evaluations."""
    group_size: int | None
    """The most episodes of a group."""
    max_staleness: int | None
    """The loop's bound on staleness."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Settings:
        def value(section: str, key: str) -> Any:
            part = config.get(section)
            return part.get(key) if isinstance(part, Mapping) else None

        def bound(key: str) -> int | None:
            found = value("loop", key)
            return found if type(found) is int and 0 <= found <= MAX_NUMBER else None

        return cls(
            saves_episodes=value("logging", "save_episodes") is not False,
            measures_end=value("eval", "at_end") is True,
            group_size=bound("group_size"),
            max_staleness=bound("max_staleness"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """by_step: of each start of a run, and of each change, the step before it, and the settings then. built_in: of
    `agentgym train`, not of a custom loop, whose settings bound nothing."""

    by_step: list[tuple[int, Settings]]
    built_in: bool = True

    @classmethod
    def of(cls, path: Path, note: Callable[[str], None]) -> Starts:
        """The settings of a run's folder. A start undoes those before it that began at its step, or later; changes
        after its step are made again.

        note: takes what can't be read.
        """
        kept: list[tuple[int, Settings]] = []
        try:
            for line, row in read_objects(path / "starts.jsonl"):
                step, config = (row or {}).get("step"), (row or {}).get("config")
                if type(step) is not int or not isinstance(config, Mapping):
                    note(f"starts.jsonl: line {line} is torn")
                    continue
                while kept and kept[-1][0] >= step:
                    kept.pop()
                kept.append((step, Settings.of(config)))
        except FileNotFoundError:
            pass
        except Damaged as error:
            note(f"starts.jsonl can't be read to its end: {error}")
        if not kept:  # of a version that recorded none
            try:
                config = parse_yaml(read_text(path / "config.yaml"), where="config.yaml")
            except (UserError, Damaged, FileNotFoundError) as error:
                note(f"the settings are unknown: {error}")
                config = None
            settings = Settings.of(config if isinstance(config, Mapping) else {})
            if not any((path / name).exists() for name in ("starts.jsonl", "state.json")):
                own = replace(settings, measures_end=False, group_size=None, max_staleness=None)
                return cls(by_step=[(0, own)], built_in=False)
            kept.append((0, settings))
        starts = cls(by_step=kept)
        for step, bound in _bounds(path, note):
            starts.by_step.append((step, replace(starts.at(step + 1), max_staleness=bound)))
            starts.by_step.sort(key=lambda one: one[0])
        return starts

    def at(self, step: int) -> Settings:
        """The settings that a step was trained with."""
        return next((settings for before, settings in reversed(self.by_step) if before < step), self.by_step[0][1])

    @property
    def last(self) -> Settings:
        return self.by_step[-1][1]

    @property
    def save_episodes(self) -> bool:
        return all(settings.saves_episodes for _, settings in self.by_step)


def _bounds(path: Path, note: Callable[[str], None]) -> Iterator[tuple[int, int]]:
    """Where the bound on staleness was changed while the run went on, and to what."""
    try:
        for line, row in read_objects(path / "changes.jsonl"):
            step, setting, value = ((row or {}).get(key) for key in ("step", "setting", "value"))
            if type(step) is not int or not isinstance(setting, str):
                note(f"changes.jsonl: line {line} is torn")
            elif setting == "loop.max_staleness" and type(value) is int and 0 <= value <= MAX_NUMBER:
                yield step, value
    except FileNotFoundError:
        pass
    except Damaged as error:
        note(f"changes.jsonl can't be read to its end: {error}")
