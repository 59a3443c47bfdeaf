"""Environments of skyrl-gym: rows, rewards, and whose fault it is when one fails.

They are played by a small library of the same interface; `tests/envs/test_skyrl_gym_package.py` takes the real one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from agentgym.errors import InfraError, UserError
from agentgym.hooks import PluginRegistry
from agentgym.testing import play
from agentgym.types import Outcome
from agentgym_envs.skyrl_gym import SkyRLGym

SMALL = Path(__file__).parents[1] / "data" / "small_skyrl"
HASH = f"{SMALL / 'hash_env.py'}:HashEnv"


def rows(size, **more):
    prompt = [[{"role": "user", "content": f"Say {n}."}] for n in range(size)]
    return [{"prompt": prompt[n], "reward_spec": {"ground_truth": f"w{n}"}, **more} for n in range(size)]


@pytest.fixture
def made(monkeypatch, tmp_path):
    """made(rows, **options): the environment on a file of these rows; its process ends with the test."""
    monkeypatch.setenv("PYTHONPATH", str(SMALL))
    found: list[SkyRLGym] = []

    def make(given=None, environment=HASH, **options):
        file = tmp_path / f"{len(found)}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in (rows(10) if given is None else given)))
        options = {"python": sys.executable, "variables": ["PYTHONPATH"], "train": str(file), **options}
        found.append(SkyRLGym(environment=environment, **options))
        return found[-1]

    yield make
    for one in found:
        one.close()


def luck(task, *said):
    truth = task.answer["reward_spec"]["ground_truth"]
    return sum(hashlib.sha256((truth + word).encode()).digest()[0] / 510 for word in said)


async def test_an_episode_earns_the_sum_of_its_steps_and_sees_what_the_environment_says(made):
    environment = made(success_at=0.0, max_turns=3)
    task = next(environment.tasks("train"))
    episode = await play(environment, task, ["a", "cut me"])
    assert (episode.outcome, episode.reward, episode.success) == (Outcome.SCORED, luck(task, "a", "cut me"), True)
    assert [one["content"] for one in episode.messages] == [
        *("Answer within 3 turns.", task.prompt[0]["content"], "a", "Go on.", "cut me")
    ]
    assert episode.info["metrics"] == {"turns": 2} and episode.info["postprocessed"] == 1
    cut = await play(made(max_turns=1, config={"turns": 9}), task, ["a", "b"])
    assert (cut.outcome, cut.reward) == (Outcome.SCORED, luck(task, "a"))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("die", "exited with 3"),
        ("raise", "hash_env.py, line 37: raise ZeroDivisionError("),
        ("wrong", "TypeError: step gave None; a BaseTextEnvStepOutput was expected"),
        ("nan", "gave the reward nan; a finite number was expected"),
        ("text", "gave the reward '1.0'"),
        ("much", "gave the reward 7, outside of 0 to 1; give the range as env.options.low and env.options.high"),
        ("vague", "the field `done` is 'no', not true or false"),
        ("image", "gave a message that is not text alone"),
    ],
)
async def test_what_an_environment_does_wrong_is_its_own_fault_and_the_next_episode_plays(made, said, message):
    environment = made()
    task = next(environment.tasks("train"))
    episode = await play(environment, task, said, may_break=True)
    assert episode.outcome is Outcome.INFRA_ERROR and message in episode.error.message
    assert (await play(environment, task, ["a", "b"])).reward == luck(task, "a", "b")


async def test_a_step_that_hangs_holds_no_other_episode_up_and_a_stopped_process_not_the_event_loop(made, tmp_path):
    environment, hanging = made(), tmp_path / "hanging"
    task = next(environment.tasks("train"))
    process, before = environment._process, environment._process.starts
    await process.ask("start", play="p", row=task.answer, **environment._settings)
    request, _ = process.request("step", play="p", said=f"hang at {hanging}")
    while not hanging.exists():
        await asyncio.sleep(0.01)
    process.cancel(request)
    await process.ask("finish", play="p")
    assert (await play(environment, task, ["a", "b"])).reward == luck(task, "a", "b")
    assert process.starts == before
    hanging.unlink()  # it comes back, and is closed then
    while not hanging.with_suffix(".closed").exists():
        await asyncio.sleep(0.01)
    os.kill(process._process.pid, signal.SIGSTOP)
    _, answer = process.request("step", play="none", said="x" * 1_000_000)  # more than a pipe holds
    os.kill(process._process.pid, signal.SIGCONT)
    assert "ended within the episode" in answer.result(60)["error"]["text"]


async def test_whose_process_died_learns_it_though_another_was_started_meanwhile(made):
    environment = made()
    task = next(environment.tasks("train"))
    process = environment._process
    await process.ask("start", play="p", row=task.answer, **environment._settings)
    with process._lock:  # so that its end is noticed by the next request first
        died = process._process
        _, answer = process.request("step", play="p", said="die")
        died.wait()
        _, other = process.request("step", play="p", said="a")
    assert "ended within the episode" in other.result(60)["error"]["text"]
    with pytest.raises(InfraError, match="exited with 3"):
        answer.result(60)


def test_rows_of_other_environments_are_left_out_and_every_fifth_is_held_out(made):
    environment = made(rows(20))
    train, test = ([task.prompt[0]["content"] for task in environment.tasks(split)] for split in ("train", "test"))
    assert len({*train, *test}) == 20 and len(test) == 4
    assert train != [task.prompt[0]["content"] for task in environment.tasks("train", 1)]
    environment = made(rows(20), test=environment._files["train"], test_tasks=7)
    assert [len([*environment.tasks(split)]) for split in ("train", "test")] == [20, 7]
    with pytest.raises(UserError, match=r"no row of 'gsm8k'; the field env_class of its rows is: aime"):
        next(made(rows(3, env_class="aime"), "gsm8k").tasks("train"))


@pytest.mark.parametrize(
    ("given", "environment", "options", "message"),
    [
        (None, "", {}, "name an environment: --env skyrl_gym:NAME"),
        (None, HASH, {"train": ""}, "give rows of SkyRL's shape: env.options.train, env.options.test or both"),
        (None, HASH, {"train": "", "test": "rows.jsonl"}, "there are no rows for the train split"),
        (None, HASH, {"train": "no.jsonl"}, "there is no file no.jsonl"),
        (None, "gsm9k", {}, "skyrl-gym has no environment 'gsm9k'.*is given by its import path"),
        (None, f"{SMALL / 'hash_env.py'}:HashEnw", {}, r"hash_env.py has no 'HashEnw'"),
        (None, "hash_enw:HashEnv", {}, "there is no module 'hash_enw' in"),
        (None, HASH, {"variables": []}, "has no package skyrl_gym: .* -m pip install skyrl-gym"),
        (None, HASH, {"config": {"runs": True}}, "runs what the policy writes on this machine.*unsafe=true"),
        ([{"prompt": [{"role": "user", "content": "Hi"}]}], HASH, {}, "row is not one of .*reward_spec field is req"),
        ([{"question": "Hi"}], HASH, {}, "has no field `prompt` with messages; .* this one has: question"),
    ],
)
def test_what_is_wrong_with_the_options_is_said_when_tasks_are_drawn(made, given, environment, options, message):
    with pytest.raises(UserError, match=message):
        next(made(given, environment, **options).tasks("train"))


def test_the_environment_is_named_with_the_plugin():
    assert issubclass(PluginRegistry.discover().environment("skyrl_gym:gsm8k"), SkyRLGym)
