"""Where a run goes on that died between two checkpoints."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from tiny_model import draw_samples
from view_runs import write_step

from agentgym.config import apply_overrides, to_mapping
from agentgym.loops.async_rl import Position
from agentgym.recipe import Recipe
from agentgym.run.layers import finish_recipe
from agentgym.run.resume import journal_position
from agentgym.run.settle import settle_served
from agentgym.runs.checkpoints import drop_undone
from agentgym.runs.folder import RunFolder
from agentgym.runs.starts import record_start
from agentgym.trainer.journal import Batch, Journal


def recipe(*overrides: str) -> Recipe:
    return finish_recipe(apply_overrides({}, ["env.name=math", *overrides]))[0]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    """Died in step 8, after a checkpoint of step 5."""
    with RunFolder.create(tmp_path, "one") as made:
        made.save_config(to_mapping(recipe()))
        record_start(made, step=0, config=to_mapping(recipe()), machine={})
        journal = Journal(made.path / "journal")
        for step in (6, 7, 8):
            journal.write(Batch(step=step, version=step - 1, samples=draw_samples(1)))
        for step in range(1, 8):
            write_step(made, step)
        journal.mark(asdict(Position(step=7, next_group=21, tasks={"seen": [1]})))
        yield made


def found(folder: RunFolder, checkpoint: int, *overrides: str) -> tuple[Position | None, list[str]]:
    lines: list[str] = []
    return journal_position(folder, checkpoint, settle_served(recipe(*overrides)), lines.append), lines


def test_it_goes_on_after_the_last_step_that_had_ended(folder: RunFolder) -> None:
    position, [line] = found(folder, 5)
    assert position == Position(step=7, next_group=21, tasks={"seen": [1]})
    assert "steps 6 to 7 are trained again" in line


def test_settings_that_change_no_weight_may_change(folder: RunFolder) -> None:
    allowed = ("trainer.max_restarts=9", "trainer.step_timeout_s=5", "loop.checkpoint_every=3", "eval.tasks=5")
    limits = ("trainer.mismatch.engine.stop=0.5", "trainer.mismatch.staleness.warn=null")
    assert found(folder, 5, *allowed, *limits)[0] is not None


@pytest.mark.parametrize(
    "override",
    [
        "optimizer.lr=1e-3",
        "loop.steps=90",
        "trainer.seq_len=256",
        "loss.clip_low=0.1",
        "trainer.mismatch.engine.mask=0.1",
        "trainer.mismatch.cap=3.0",
    ],
)
def test_settings_that_the_steps_did_not_have_are_not_used_for_them(folder: RunFolder, override: str) -> None:
    position, [line] = found(folder, 5, override)
    assert position is None and "changed" in line and override.split(".")[0] in line


def test_a_checkpoint_that_the_journal_does_not_follow_is_where_it_goes_on(folder: RunFolder) -> None:
    assert found(folder, 4) == (None, [])
    assert found(folder, 7) == (None, [])


def test_a_journal_that_is_damaged_costs_a_line(folder: RunFolder) -> None:
    (folder.path / "journal" / "position.json").write_text('{"step": 7')
    position, [line] = found(folder, 5)
    assert position is None and "the journal is not used" in line


def _cut(name: str, keep: float = 0.5) -> Callable[[RunFolder], object]:
    def cut(folder: RunFolder) -> None:
        path = folder.path / name
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])

    return cut


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_cut("metrics.jsonl", 0.97), "no whole row of step 7"),
        (_cut("episodes/step-000006.jsonl.gz"), "episodes of step 6 can't be read: it ends early"),
        (lambda folder: folder.episode_file(7).unlink(), "episodes of step 7 are missing"),
        (lambda folder: folder.episode_file(7).write_bytes(gzip.compress(b'{"step": 7}\n{"st')), "step 7 are torn"),
    ],
)
def test_a_step_of_which_something_is_torn_is_done_again(
    folder: RunFolder, damage: Callable[[RunFolder], object], says: str
) -> None:
    damage(folder)
    position, [line] = found(folder, 5)
    assert position is None and "steps 6 to 7 are done again" in line and says in line
    drop_undone(folder, 5)  # as the resume does
    assert [json.loads(row)["step"] for row in (folder.path / "metrics.jsonl").read_text().splitlines()] == [
        1,
        2,
        3,
        4,
        5,
    ]


def test_a_reference_that_follows_the_policy_is_only_in_checkpoints(folder: RunFolder) -> None:
    position, [line] = found(folder, 5, "loss.kl_coef=0.1", "trainer.reference_every=2")
    assert position is None and "reference model follows the policy" in line


def test_a_deterministic_run_goes_on_at_its_checkpoint_which_has_the_groups_under_way(folder: RunFolder) -> None:
    assert found(folder, 5, "loop.deterministic=true") == (None, [])
