"""Demonstrations of `tool_use`: of the train split, answered as in an episode, wrong as often as the shares say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from agentgym.hooks import PluginRegistry
from agentgym.policies.scripted import play_script
from agentgym.rl.demonstrations import Demonstration
from agentgym.rollout.scoring import Scorer
from agentgym.types import Episode, Task
from agentgym_envs.tool_use.drawing import draw
from agentgym_envs.tool_use.environment import ToolUse
from agentgym_envs.tool_use.worlds import TOOLS

ROOT = Path(__file__).parent.parent.parent
SCORER = Scorer.of(ToolUse(), PluginRegistry.discover())


@pytest.fixture(autouse=True)
def _apps_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))  # apps are no part of the installed package


def some(count: int, levels: tuple[int, ...] = (1, 2), seed: int = 0, **shares: float) -> Iterator[Demonstration]:
    from apps.sft.tool_demonstrations import ToolDemonstrationConfig, demonstrations

    config = ToolDemonstrationConfig(levels=levels, seed=seed, **shares)
    return islice(demonstrations(config), count)


async def played(made: Demonstration, levels: tuple[int, ...] = (1, 2)) -> Episode:
    """What the agent says in it, said to the environment."""
    drawn = draw("train", made.name, levels, tuple(ToolUse()._worlds))
    assert drawn.plan.shape.split == "train"
    task = Task(task_id=made.name, prompt=made.messages[:2], answer=drawn.plan.to_json(), difficulty=drawn.level)
    says = [message for message in made.messages if message["role"] == "assistant"]
    return await play_script(ToolUse(), task, says, scorer=SCORER)


async def test_the_environment_would_have_answered_the_same() -> None:
    for made in some(150):
        episode = await played(made)
        assert [m["content"] for m in episode.messages] == [m["content"] for m in made.messages]
        assert made.messages[1]["role"] == "user" and made.messages[-1]["role"] == "assistant"
        offered = {tool["function"]["name"] for tool in made.tools}  # type: ignore[index,call-overload]
        assert {call.name for call in episode.tool_calls} <= offered


@pytest.mark.parametrize(
    ("levels", "habits", "slips", "low", "high"),
    [
        ((1, 2, 3, 4, 5), 0.0, 0.0, 1.0, 1.0),
        ((1,), 0.6, 0.1, 0.4, 0.6),
        ((2,), 0.6, 0.1, 0.3, 0.5),
        ((1,), 0.9, 0.9, 0, 0.2),
    ],
)
async def test_they_succeed_as_often_as_the_shares_say(
    levels: tuple[int, ...], habits: float, slips: float, low: float, high: float
) -> None:
    results = [await played(made, levels) for made in some(200, levels, habit_share=habits, slip_share=slips)]
    assert low <= sum(episode.success for episode in results) / 200 <= high
    assert any(episode.info["harmful"] for episode in results) == (habits > 0)


def test_a_habit_is_a_trap_beside_the_tool() -> None:
    from apps.sft.tool_demonstrations import HABITS

    for tool, trap in HABITS.items():
        assert TOOLS[trap].twin == tool and TOOLS[trap].is_trap


def test_the_same_seed_gives_the_same_and_another_seed_others() -> None:
    assert list(some(20)) == list(some(20)) != list(some(20, seed=1))


def test_whole_episodes_of_levels_1_and_2_are_short(tmp_path: Path) -> None:
    """In tokens of a small tokenizer made for them: a context of 1,024 has room for more than one."""
    from agentgym.rl.demonstrations import written
    from agentgym.text.chat import ChatRenderer
    from agentgym.text.tokenizer import HuggingFaceTokenizer
    from apps.sft.tokenizer import save_tokenizer, train_tokenizer

    made = list(some(200))
    texts = [message["content"] for one in made for message in one.messages]
    texts += [json.dumps(call["function"]) for one in made for m in one.messages for call in m.get("tool_calls", [])]
    texts += [str(tool["function"]["description"]) for one in made for tool in one.tools]  # type: ignore[index,call-overload]
    save_tokenizer(train_tokenizer(texts, vocab_size=640, max_token_chars=20), tmp_path, max_length=1024)
    renderer = ChatRenderer(HuggingFaceTokenizer(str(tmp_path)))
    for level, most in ((1, 250), (2, 400)):
        right = some(60, (level,), habit_share=0.0, slip_share=0.0)
        assert max(len(written(one, renderer)) for one in right) < most
