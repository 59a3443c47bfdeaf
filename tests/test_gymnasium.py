"""Every environment is a clean `gymnasium.Env`, and a vector environment that gives the same episodes."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gymnasium")
import gymnasium
import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from agentgym.errors import UserError
from agentgym.gymnasium import AnyText, TextEnv, TextVectorEnv, register_gymnasium
from agentgym.hooks import PluginRegistry, hookimpl
from agentgym.rollout.text_episode import TextEpisode, TextGame, TextGameConfig
from agentgym.testing import FakeSandbox


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert [t.name for t in threading.enumerate() if t.name.startswith("agentgym")] == []


@pytest.fixture
def ids() -> list[str]:
    return register_gymnasium()


def right_answer(env: TextEnv) -> str:
    (episode,) = env._game.episodes
    return f"#### {episode.task.answer}"


def test_every_installed_environment_is_registered_with_its_version(ids: list[str]) -> None:
    assert "agentgym/math-v2" in ids
    assert len(ids) == len(PluginRegistry.discover().names("environments"))
    assert register_gymnasium() == ids  # again is fine
    assert all(gymnasium.spec(name).id == name for name in ids)


def test_a_name_of_two_plugins_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    class Plugin:
        @hookimpl
        def environments(self) -> dict[str, type]:
            return {"doubled": lambda: None}

    registry = PluginRegistry.discover()
    registry.register(Plugin(), "one")
    registry.register(Plugin(), "two")
    assert register_gymnasium(registry) == register_gymnasium()
    assert "not registered: environment 'doubled' is provided by 'one'" in caplog.text


@pytest.mark.parametrize(
    "line",
    [
        "import agentgym.gymnasium; env = gymnasium.make('agentgym/math-v2')",
        "env = gymnasium.make('agentgym.gymnasium:agentgym/math-v2')",
    ],
)
def test_an_environment_is_made_by_its_id_in_a_new_process(line: str) -> None:
    code = f"import gymnasium\n{line}\nassert '####' in env.reset(seed=0)[0]; env.close()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_an_environment_of_a_file_is_made_by_its_path() -> None:
    env = TextEnv(name=f"{Path(__file__).parent}/data/repeat_number.py:RepeatNumber", split="test")
    text, _ = env.reset(seed=0)
    _, reward, terminated, _, info = env.step(text.split()[-1].strip("."))
    assert terminated and info["success"] and reward == 1.0 + 0.1 * info["rewards"]["short"]
    env.close()


def test_check_env_has_nothing_to_say(ids: list[str]) -> None:
    env = gymnasium.make("agentgym/math-v2")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env.unwrapped)
    env.close()
    assert [str(warning.message) for warning in caught] == []


def test_an_episode_is_played_and_scored(ids: list[str]) -> None:
    env = gymnasium.make("agentgym/math-v2", render_mode="ansi")
    text, info = env.reset(seed=3)
    assert "####" in text and info["task_id"].startswith("math/")
    answer = right_answer(env.unwrapped)  # type: ignore[arg-type]
    after, reward, terminated, truncated, info = env.step(answer)
    assert (after, reward, terminated, truncated) == ("", 1.0, True, False)
    assert info["success"] is True and info["rewards"] == {"success": 1.0}
    assert answer in str(env.render())
    env.close()
    env.close()


def test_a_second_turn_and_rewards_of_ones_own() -> None:
    env = TextEnv(name="math", options={"tries": 2}, rewards={"success": 1.0, "format": 0.5})
    env.reset(seed=0)
    after, reward, terminated, truncated, _ = env.step("#### 123456789")
    assert "Try again" in after and (reward, terminated, truncated) == (0.0, False, False)
    _, reward, terminated, _, _ = env.step(right_answer(env))
    assert (reward, terminated) == (1.5, True)
    with pytest.raises(RuntimeError, match="call reset"):
        env.step("again")
    env.close()


def test_the_turn_limit_truncates() -> None:
    env = TextEnv(name="math", options={"tries": 2}, max_turns=1)
    env.reset(seed=0)
    _, reward, terminated, truncated, _ = env.step("no")
    assert (reward, terminated, truncated) == (0.0, False, True)
    env.close()


def test_the_same_seed_gives_the_same_task_and_others_follow_from_it() -> None:
    env = TextEnv(name="math")
    first = [env.reset(seed=5)[0], *(env.reset()[0] for _ in range(4))]
    again = [env.reset(seed=5)[0], *(env.reset()[0] for _ in range(4))]
    assert first == again and len(set(first)) > 3
    env.close()


@pytest.mark.parametrize("action", ["", "\x00", "¿🦀?", "\ud800", "#### " + "9" * 10_000, "\\boxed{" * 1000])
def test_no_action_raises(action: str) -> None:
    env = TextEnv(name="math")
    env.reset(seed=0)
    assert env.step(action)[1] == 0.0
    env.close()


def test_the_space_holds_every_text_and_samples_some() -> None:
    space, same = AnyText(seed=1), AnyText(seed=1)
    samples = [space.sample() for _ in range(50)]
    assert samples == [same.sample() for _ in range(50)] and len(set(samples)) > 40
    assert all(s in space for s in [*samples, "", "日本"]) and 5 not in space
    assert space == same and space != gymnasium.spaces.Text(5)


def make_vector(num_envs: int, **config: Any) -> TextVectorEnv:
    register_gymnasium()
    env = gymnasium.make_vec("agentgym/math-v2", num_envs=num_envs, **config)
    assert isinstance(env.unwrapped, TextVectorEnv)
    return env.unwrapped


def test_the_vector_environment_plays_what_single_ones_play() -> None:
    vector = make_vector(6)
    texts, infos = vector.reset(seed=10)
    singles = [TextEnv(name="math") for _ in range(6)]
    expected = [env.reset(seed=10 + i) for i, env in enumerate(singles)]
    assert list(texts) == [text for text, _ in expected]
    assert list(infos["task_id"]) == [info["task_id"] for _, info in expected]
    answers = [right_answer(env) if i % 2 else "#### 123456789" for i, env in enumerate(singles)]
    texts, rewards, terminated, truncated, _ = vector.step(answers)
    assert rewards.tolist() == [0.0, 1.0] * 3 and rewards.dtype == np.float64
    assert terminated.all() and not truncated.any() and texts == ("",) * 6
    assert texts in vector.observation_space
    for env in (*singles, vector):
        env.close()  # type: ignore[attr-defined]


def test_finished_episodes_of_a_vector_wait_for_their_reset() -> None:
    vector = make_vector(3, options={"tries": 2})
    vector.reset(seed=0)
    answer = f"#### {vector._game.episodes[1].task.answer}"
    _, rewards, terminated, _, _ = vector.step(["no", answer, "no"])
    assert rewards.tolist() == [0, 1, 0] and terminated.tolist() == [False, True, False]
    texts, rewards, terminated, _, _ = vector.step(["no", "ignored", "no"])
    assert rewards.tolist() == [0, 0, 0] and terminated.tolist() == [True, False, True]
    mask = np.array([False, True, False])
    texts, _ = vector.reset(options={"reset_mask": mask})
    assert "####" in texts[1]
    assert vector.step(["", "no", ""])[2].tolist() == [False, False, False]
    vector.close()


def wrong_then_right(mode: str) -> tuple[Any, TextVectorEnv]:
    """Two episodes of two tries under gymnasium's own counting; the second has just ended."""
    register_gymnasium()
    made = gymnasium.make_vec("agentgym/math-v2", num_envs=2, autoreset_mode=mode, options={"tries": 2})
    env = RecordEpisodeStatistics(made)  # refuses a mode that it does not know
    assert env.metadata["autoreset_mode"] is AutoresetMode(mode)
    env.reset(seed=0)
    return env, made.unwrapped  # type: ignore[return-value]


def answer_of(vector: TextVectorEnv, index: int) -> str:
    return f"#### {vector._game.episodes[index].task.answer}"


def test_next_step_begins_the_next_episode_with_the_next_step() -> None:
    env, vector = wrong_then_right("NextStep")
    texts, rewards, terminated, _, infos = env.step(["no", answer_of(vector, 1)])
    assert texts[1] == "" and terminated.tolist() == [False, True] and infos["episode"]["l"].tolist() == [0, 1]
    texts, rewards, terminated, _, infos = env.step([answer_of(vector, 0), "ignored"])
    assert "####" in texts[1] and rewards.tolist() == [1, 0] and terminated.tolist() == [True, False]
    assert infos["_task_id"].tolist() == [False, True]
    _, rewards, terminated, _, _ = env.step(["ignored", answer_of(vector, 1)])
    assert rewards.tolist() == [0, 1] and terminated.tolist() == [False, True]
    env.close()


def test_same_step_returns_the_next_prompt_and_keeps_the_end_in_the_infos() -> None:
    env, vector = wrong_then_right("SameStep")
    texts, rewards, terminated, _, infos = env.step(["no", answer_of(vector, 1)])
    assert "####" in texts[1] and rewards.tolist() == [0, 1] and terminated.tolist() == [False, True]
    assert infos["final_obs"][1] == "" and infos["final_info"]["success"].tolist() == [False, True]
    assert infos["_task_id"].tolist() == [False, True]
    _, rewards, terminated, _, _ = env.step([answer_of(vector, 0), answer_of(vector, 1)])
    assert rewards.tolist() == [1, 1] and terminated.all()
    env.close()


def test_an_unknown_autoreset_mode_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"'Samestep'\. Did you mean 'SameStep'"):
        TextVectorEnv(1, name="math", autoreset_mode="Samestep")


def test_a_closed_environment_says_so() -> None:
    env, vector = TextEnv(name="math"), make_vector(1)
    for one in (env, vector):
        one.reset(seed=0)
        one.close()
        for call in (one.reset, lambda one=one: one.step("1")):
            with pytest.raises(ClosedEnvironmentError, match=r"is closed.*make another"):
                call()


def test_a_vector_that_was_not_reset_says_so() -> None:
    vector = make_vector(2)
    with pytest.raises(ResetNeeded, match=r"\[0, 1\] have not begun; call reset"):
        vector.step(["", ""])
    vector.close()


def test_a_task_is_chosen_by_its_id_and_an_unknown_one_is_named() -> None:
    env = TextEnv(name="math")
    text, info = env.reset(seed=0)
    other, chosen = env.reset(seed=1)
    assert chosen["task_id"] != info["task_id"]
    again, chosen = env.reset(seed=1, options={"task_id": info["task_id"]})
    assert (again, chosen["task_id"]) == (text, info["task_id"])
    assert env.reset(seed=1)[0] == other, "only that once"
    with pytest.raises(UserError, match=r"no task 'math/x' among the 256 of math.*Available: .*math/"):
        env.reset(options={"task_id": "math/x"})
    with pytest.raises(UserError, match=r"no option 'task'\. Did you mean 'task_id'"):
        env.reset(options={"task": 1})
    env.close()


def test_gymnasiums_own_vector_environments_take_it_too(ids: list[str]) -> None:
    vector = gymnasium.make_vec("agentgym/math-v2", num_envs=2, vectorization_mode="sync")
    texts, _ = vector.reset(seed=0)
    assert len(texts) == 2 and vector.step(["a", "b"])[1].tolist() == [0.0, 0.0]
    vector.close()


async def test_an_environment_that_runs_code_gets_the_sandbox_that_is_named() -> None:
    sandbox = FakeSandbox()

    class Plugin:
        @hookimpl
        def sandboxes(self) -> dict[str, Any]:
            return {"passing": lambda options: sandbox}

    registry = PluginRegistry.discover()
    registry.register(Plugin(), "passing")
    game = await TextGame.start(registry, TextGameConfig(name="code_exec", sandbox="passing"))
    episode = TextEpisode(game)
    _, info = await episode.reset(seed=0)
    entry = str(episode.task.answer["entry"])  # type: ignore[index,call-overload]
    after = await episode.step(f"```python\ndef {entry}(*given):\n    return 0\n```")
    assert after.terminated and after.reward == 1.0 and after.info["success"] is True
    assert info["task_id"] == game.tasks[0].task_id
    await game.close()
    assert len(sandbox.graded) == 1 and not sandbox.is_open


@pytest.mark.parametrize(
    "config",
    [{"name": "maths"}, {"name": "math", "rewards": {"sucess": 1.0}}, {"name": "code_exec", "sandbox": "dokcer"}],
)
def test_unknown_names_are_the_users_mistake_and_leave_nothing(config: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="Did you mean"):
        TextEnv(**config)


def test_an_environment_that_nobody_closed_lets_the_process_end_silently() -> None:
    code = (
        "import logging; logging.disable(logging.WARNING)\n"  # other plugins' warnings are beside the point
        "from agentgym.gymnasium import TextEnv\n"
        "env = TextEnv(name='math'); env.reset(seed=0); env.step('1')\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
