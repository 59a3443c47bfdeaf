"""Which checkpoint a resumed run continues from, whatever a kill -9 left of a newer one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from agentgym.errors import UserError
from agentgym.families.registry import read_architecture
from agentgym.loops.async_rl import Position
from agentgym.models.tiny import policy_path
from agentgym.run.loop_state import save_loop
from agentgym.run.resume import RunState, resumed_state, undo_later_steps
from agentgym.runs.checkpoints import drop_unfinished, save_position
from agentgym.runs.folder import RunFolder
from agentgym.trainer.checkpoint import write_manifest
from agentgym.trainer.config import LoraConfig

WHOLE = (0, 20, 40)
LORA = LoraConfig(rank=4, alpha=8.0)


def save(folder: RunFolder, step: int) -> Path:
    """A checkpoint as the trainer leaves it, with other weights."""
    place = folder.checkpoint_dir(step)
    (place / "trainer").mkdir(parents=True)
    (place / "trainer" / "0.distcp").write_bytes(b"w" * 100)
    write_manifest(place / "trainer", step=step, architecture=read_architecture(policy_path()), lora=LORA)
    (place / "hf").mkdir()
    save_position(folder, step, asdict(Position(step=step, next_group=step * 3)))
    return place


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path, "one") as made:
        for step in WHOLE:
            save(made, step)
        made.save_state(RunState(position=Position(step=40, next_group=120)).to_mapping())
        yield made


def resume(
    folder: RunFolder, from_step: int | None = None, lora: LoraConfig = LORA
) -> tuple[Position | None, list[str]]:
    lines: list[str] = []
    state = resumed_state(folder, policy_path(), from_step, lines.append, lora)
    return state.position, lines


def trainer_half(place: Path) -> None:
    shutil.rmtree(place / "hf")
    (place / "trainer" / "manifest.json").unlink()
    (place / "trainer").rename(place / "trainer.partial")
    (place / "position.json").unlink()


def export_half(place: Path) -> None:
    (place / "hf").rename(place / "hf.partial")
    (place / "position.json").unlink()


def no_position(place: Path) -> None:
    (place / "position.json").unlink()
    (place / ".position.json.part").write_text('{"st')


def half_pruned(place: Path) -> None:
    (place / "position.json").unlink()
    (place / "trainer" / "0.distcp").unlink()


def cut_short(place: Path) -> None:
    (place / "trainer" / "0.distcp").write_bytes(b"w" * 50)


def flipped(place: Path) -> None:
    (place / "trainer" / "0.distcp").write_bytes(b"w" * 99 + b"x")


def torn_position(place: Path) -> None:
    (place / "position.json").write_text('{"step": 6')


def other_position(place: Path) -> None:
    (place / "position.json").write_text(json.dumps({"step": 59, "next_group": 180}))


def other_step(place: Path) -> None:
    manifest = place / "trainer" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"step": 59}))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (trainer_half, "not finished"),
        (export_half, "not finished"),
        (no_position, "not finished"),
        (half_pruned, "not finished"),
        (cut_short, "50 bytes, 100 were saved"),
        (flipped, "content has changed"),
        (torn_position, r"position\.json"),
        (other_position, "of step 59"),
        (other_step, "saved after step 59, not after step 60"),
    ],
)
def test_a_newer_checkpoint_that_is_not_whole_is_skipped_with_a_line(
    folder: RunFolder, damage: Callable[[Path], None], says: str
) -> None:
    damage(save(folder, 60))
    position, lines = resume(folder)
    assert position == Position(step=40, next_group=120)
    [line] = lines
    assert "step 60 is skipped" in line
    with pytest.raises(UserError, match=says):
        resume(folder, from_step=60)


def test_what_a_death_left_of_a_save_is_removed_and_nothing_else(folder: RunFolder) -> None:
    """A run that goes on by its journal does not save that step again."""
    trainer_half(save(folder, 10))
    export_half(save(folder, 30))
    no_position(save(folder, 50))  # as checkpoints of an older version are
    drop_unfinished(folder)
    assert folder.checkpoint_steps(unfinished=True) == [0, 20, 40, 50]


def test_a_torn_row_before_the_checkpoint_is_said_with_what_to_do(folder: RunFolder) -> None:
    for step in range(1, 41):
        folder.append_metrics(step, {"reward": 0.5})
    metrics = folder.path / "metrics.jsonl"
    rows = metrics.read_text().splitlines()
    metrics.write_text("\n".join([*rows[:6], rows[6][:9], *rows[7:]]) + "\n")
    position, [line] = resume(folder)
    assert position is not None and position.step == 40
    assert "no whole row of step 7" in line and "--from-step" in line


def test_a_kill_between_a_checkpoint_and_the_state_loses_nothing(folder: RunFolder) -> None:
    save(folder, 60)
    assert resume(folder) == (Position(step=60, next_group=180), [])


def test_a_step_that_is_asked_for_is_taken_and_a_missing_one_names_the_nearest(folder: RunFolder) -> None:
    assert resume(folder, from_step=20) == (Position(step=20, next_group=60), [])
    with pytest.raises(UserError, match=r"no checkpoint of step 41\..*Did you mean '40'.*Available: 0, 20, 40"):
        resume(folder, from_step=41)


def test_the_state_forgets_a_step_that_was_undone(folder: RunFolder) -> None:
    """Else it would lend its position to a later save of that step which was not finished."""
    state = resumed_state(folder, policy_path(), 20, print, LORA)
    undo_later_steps(folder, state)
    assert folder.checkpoint_steps(unfinished=True) == [0, 20]
    assert RunState.from_mapping(folder.load_state()) == state
    export_half(save(folder, 40))
    assert resume(folder)[0] == Position(step=20, next_group=60)


def test_no_whole_checkpoint_at_all_is_the_end_with_every_reason(folder: RunFolder) -> None:
    for step in WHOLE:
        cut_short(folder.checkpoint_dir(step))
    with pytest.raises(UserError, match=r"no whole checkpoint(?s:.)*step 40 (?s:.)*step 20 (?s:.)*step 0 "):
        resume(folder)


@pytest.mark.parametrize("change", [{"alpha": 16.0}, {"rank": 8}, {"rank": 0}, {"targets": ("q_proj",)}])
def test_adapters_that_would_be_another_policy_are_refused(folder: RunFolder, change: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"saved with trainer\.lora .*'alpha': 8\.0.*Resume with"):
        resume(folder, lora=replace(LORA, **change))
    reordered = replace(LORA, targets=LORA.targets[::-1])
    assert resume(folder, lora=reordered)[0] is not None


def test_a_run_of_an_older_version_has_its_position_in_the_state_alone(folder: RunFolder) -> None:
    for step in WHOLE:
        no_position(folder.checkpoint_dir(step))
    assert resume(folder)[0] == Position(step=40, next_group=120)


def test_checkpoints_of_a_loop_over_services_are_refused_and_stay(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "own") as own:
        place = save(own, 3)
        save_loop(place, b"")
        for from_step in (None, 3):
            with pytest.raises(UserError, match=rf"services.load, or .* --model.path {place}$"):
                resumed_state(own, policy_path(), from_step, print, LORA)
        assert own.checkpoint_steps() == [3]


def test_a_run_that_ended_before_it_saved_anything_begins_again(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "young") as young:
        (young.checkpoint_dir(0) / "trainer.partial").mkdir(parents=True)
        said: list[str] = []
        state = resumed_state(young, policy_path(), None, said.append, LORA)
        assert (state, said) == (RunState(), ["it ended before it had saved anything, so it begins again"])
        assert list((young.path / "checkpoints").iterdir()) == []
        with pytest.raises(UserError, match="before it saved anything"):
            resumed_state(young, policy_path(), 20, said.append, LORA)
