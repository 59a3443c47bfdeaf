"""Where a run goes on that ended without a checkpoint: after its last finished step, by its journal."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import cast

from agentgym.config import to_mapping
from agentgym.errors import UserError
from agentgym.recipe import Recipe
from agentgym.rl.loop import Position
from agentgym.run.state import read_position
from agentgym.runs.checkpoints import torn_step
from agentgym.runs.folder import RunFolder
from agentgym.runs.starts import start_of
from agentgym.trainer.journal import Journal

SETTINGS = ("model", "advantage", "loss", "optimizer", "trainer", "rollout.temperature", "loop.steps")
"""What a step's weights depend on besides its samples."""
OTHERS = ("gpus", "step_timeout_s", "max_restarts", "check_memory")
"""Of the trainer's settings those that change no weight."""
ONLY_SAY = ("warn", "stop")
"""Of trainer.mismatch's limits those that change none."""


def journal_position(
    folder: RunFolder, journal: Journal, checkpoint: int, recipe: Recipe, say: Callable[[str], None]
) -> Position | None:
    """Of the last finished step, where the journal leads there from the checkpoint of this step; else None.

    A journal that can't be used costs the steps since the checkpoint and nothing else, so it is reported in a line. A
    deterministic run repeats them exactly, and needs what only the checkpoint has: the groups that were under way.
    """
    if recipe.loop.deterministic:
        return None
    try:
        position = read_position(journal.position(checkpoint))
    except UserError as error:
        say(f"the journal is not used: {error}")
        return None
    if position is None:
        return None
    if recipe.needs_reference and recipe.trainer.reference_every:
        say("the journal is not used: the reference model follows the policy, and is saved with checkpoints alone")
        return None
    config = start_of(folder, position.step).config
    if problem := torn_step(folder, checkpoint, position.step, episodes=_saves_episodes(config)):
        say(f"steps {checkpoint + 1} to {position.step} are done again from the checkpoint: {problem}")
        return None
    before = _settings(config)
    after = _settings(cast("Mapping[str, object]", to_mapping(recipe)))
    if changed := [name for name in SETTINGS if before[name] != after[name]]:
        say(
            f"steps {checkpoint + 1} to {position.step} are done again from the checkpoint, not from the journal: it "
            f"can only repeat them with the settings that they had, and {', '.join(changed)} changed"
        )
        return None
    say(f"steps {checkpoint + 1} to {position.step} are trained again from the journal; none is sampled again")
    return position


def _saves_episodes(config: Mapping[str, object]) -> bool:
    logging = config.get("logging")
    return not isinstance(logging, Mapping) or logging.get("save_episodes") is not False


def _settings(config: Mapping[str, object]) -> dict[str, object]:
    """As JSON has them, in which tuples are lists."""
    found: dict[str, object] = {}
    for name in SETTINGS:
        value: object = config
        for key in name.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, Mapping):
            value = {
                key: _that_act(one) if key == "mismatch" else one for key, one in value.items() if key not in OTHERS
            }
        found[name] = json.loads(json.dumps(value))
    return found


def _that_act(value: object) -> object:
    """Limits of the mismatch, without those that change no weight."""
    if not isinstance(value, Mapping):
        return value
    return {key: _that_act(one) for key, one in value.items() if key not in ONLY_SAY}
