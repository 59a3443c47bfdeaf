"""Saved episodes under other rewards: which are scored, what is counted as changed, and the command."""

import json
import re

import pytest

from agentgym.evals.play import summarize as summarize_eval
from agentgym.evals.rescore import as_evaluation, rescore, summarize
from agentgym.rewards import Reward
from agentgym.rollout.scoring import Scorer
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.runs.records import SavedEpisode
from agentgym.types import Episode, ErrorRecord, Group, Outcome, Task

TASK = Task(task_id="t", prompt=())
LENGTHS = {"a": 10, "b": 20, "c": 30, "d": 40}


def episode(name, reward, outcome=Outcome.SCORED, source=""):
    error = ErrorRecord(source=source, kind="KeyError", message="gone") if source else None
    info = {"length": LENGTHS[name]}
    return Episode(episode_id=name, task=TASK, seed=0, info=info, reward=reward, outcome=outcome, error=error,
                   rewards={"old": reward})  # fmt: skip


def saved(group_id, *episodes):
    return [
        SavedEpisode(step=1, group_id=group_id, index=n, start_version=0, advantage=None, trained=True, episode=one)
        for n, one in enumerate(episodes)
    ]


def short(episode):
    if episode.info["length"] == 30:
        raise ValueError("no length")
    return 1.0 - episode.info["length"] / 100


async def rescored(*records, reward=None):
    reward = reward or Reward(name="short", function=short, inline=True, low=-0.5)
    async with Scorer([reward], {reward.name: 2.0}) as scorer:
        return await rescore(list(records), scorer)


async def test_what_was_scored_and_what_rewards_had_cost_is_scored_again():
    records = saved(
        1,
        episode("a", 0.0),
        episode("b", None, Outcome.INFRA_ERROR, "reward:old"),
        episode("d", None, Outcome.INFRA_ERROR, "sandbox"),
        episode("d", 0.0, Outcome.INVALID),
    )
    found = await rescored(*records)
    assert [one.after.episode_id for one in found] == ["a", "b", "d"]
    assert [one.after.reward for one in found] == pytest.approx([1.8, 1.6, -1.0])  # the last one earns the floor
    assert [one.after.outcome for one in found] == [Outcome.SCORED, Outcome.SCORED, Outcome.INVALID]
    assert records[0].episode.reward == 0.0 and records[0].episode.rewards == {"old": 0.0}  # as it was saved
    assert summarize(found).num_regained == 1


async def test_a_reward_that_fails_now_costs_the_episode():
    found = await rescored(*saved(1, episode("c", 1.0)))
    assert found[0].after.error.message.startswith("no length")
    assert summarize(found).num_lost == 1


async def test_signal_and_order_are_those_of_the_groups():
    first = saved(1, episode("a", 0.0), episode("b", 1.0))  # the new reward prefers the other one
    second = saved(2, episode("a", 1.0), episode("d", 1.0))  # which had no signal
    third = saved(3, episode("b", 0.2), episode("b", 0.9))  # which loses its signal
    found = await rescored(*first, *second, *third)
    summary = summarize(found)
    assert (summary.num_groups, summary.with_signal_before, summary.with_signal_after) == (3, 2, 2)
    assert (summary.num_pairs, summary.num_reversed) == (1, 1)
    assert summary.num_changed == 6
    assert summary.mean_before == pytest.approx((0 + 1 + 1 + 1 + 0.2 + 0.9) / 6)
    assert summary.mean_after == pytest.approx((1.8 + 1.6 + 1.8 + 1.2 + 1.6 + 1.6) / 6)


async def test_rewards_of_a_group_see_those_that_were_played_together():
    seen = []

    def together(episodes):
        seen.append([episode.episode_id for episode in episodes])
        return [0.5] * len(episodes)

    reward = Reward(name="together", function=together, scope="group", inline=True)
    found = await rescored(*saved(1, episode("a", 0.0), episode("b", 0.0)), *saved(2, episode("d", 0.0)), reward=reward)
    assert seen == [["a", "b"], ["d"]]
    assert [one.after.reward for one in found] == [1.0] * 3
    async with Scorer([reward], {"together": 1.0}) as scorer:  # an evaluation has no groups
        [alone] = await rescore(saved(1, episode("a", 0.0)), scorer, evaluation=True)
    assert alone.after.rewards == {"together": None} and len(seen) == 2


EVAL = ("eval", "builtin:tiny", "--env", "counting", "--name", "mine", "--samples", "1", "--set", "logging.sinks=[]")
REWARDS = """
def long(episode):
    return min(1.0, episode.info["length"] / 40)
"""


@pytest.fixture
def run_dir(cli, made_once, tmp_path):
    def make() -> None:
        assert cli.train("--name", "one", "--loop.steps", "1").code == 0
        with RunFolder.open("runs/one", for_writing=True) as folder:
            episodes = [episode("a", 1.0), episode("b", 0.5), episode("d", 0.0)]
            folder.save_groups(1, [Group(group_id=0, task=TASK, start_version=0, episodes=episodes)])

    (tmp_path / "my.py").write_text(REWARDS)
    made_once(make)
    return "runs/one"


def test_the_command_says_what_changes(cli, run_dir, tmp_path):
    end = cli("runs", "rescore", run_dir, "--reward", f"{tmp_path / 'my.py'}:long=2")
    assert end.code == 0, end.err
    assert "3 episodes, 3 with another reward" in end.out
    assert re.search(r"^long +2 ", end.out, re.MULTILINE)  # the weight, whatever path named the reward
    assert "groups with signal: 1 of 1 before, 1 after; pairs of a group that change their order: 3 of 3" in end.out
    assert "Read one: agentgym runs episodes runs/one --step 1 --show d" in end.out


def test_the_command_says_which_steps_it_scores_and_finds_the_episodes_of_an_evaluation(cli, run_dir):
    long = ("--reward", "my.py:long")
    assert cli("runs", "rescore", run_dir, *long).out.startswith("step 1 of training, the only one saved\n")
    with RunFolder.open(run_dir, for_writing=True) as folder:
        folder.save_groups(2, [Group(group_id=1, task=TASK, start_version=1, episodes=[episode("c", 1.0)])])
    end = cli("runs", "rescore", run_dir, *long)
    assert end.out.startswith("step 2 of training alone, of 2 that were saved; --step all scores all\n")
    assert "1 episodes" in end.out
    assert cli("runs", "rescore", run_dir, *long, "--step", "all").out.startswith("steps 1 to 2 of training\n")
    assert json.loads(cli("runs", "rescore", run_dir, *long, "--json").out)["steps"] == [2]
    assert cli(*EVAL).code == 0
    end = cli("runs", "rescore", "evals/mine", "--reward", "exact")
    assert end.code == 0 and end.out.startswith("step 0 of the evaluations, the only one saved\n"), end.err
    assert "20 episodes" in end.out


def test_a_number_of_an_episode_counts_among_those_that_are_asked_for(cli, run_dir):
    assert cli(*EVAL).code == 0
    listed = cli("runs", "episodes", "evals/mine", "--failure")
    assert "Read one: agentgym runs episodes evals/mine --evals --step 0 --failure --show 1" in listed.out
    end = cli("runs", "episodes", "evals/mine", "--failure", "--show", "1")
    assert "eval-0009-00 (number 1 of step 0 --failure)" in end.out and "no success" in end.out
    assert "eval-0000-00" in cli("runs", "episodes", "evals/mine", "--show", "1").out
    end = cli("runs", "episodes", "evals/mine", "--failure", "--show", "12")
    assert end.code == 2 and "no episode number 12 with --failure; step 0 has 1 to 11" in end.err
    end = cli("runs", "episodes", "evals/mine", "--success", "--show", "eval-0009-00")
    assert end.code == 2 and "in step 0 with --success" in end.err


def test_the_command_gives_json(cli, run_dir, tmp_path):
    end = cli("runs", "rescore", run_dir, "--reward", f"{tmp_path / 'my.py'}:long", "--json", "--episodes", "2")
    found = json.loads(end.out)
    assert found["num_episodes"] == 2 and found["num_reversed"] == 1
    assert [one["after"] for one in found["episodes"]] == [0.25, 0.5]


def test_an_evaluation_is_scored_again_saved_and_compared(cli, tmp_path, monkeypatch):
    (tmp_path / "my.py").write_text("def half(episode): return 0.5 if episode.info['success'] else 0.25")
    assert cli(*EVAL).code == 0
    half = ("--reward", "my.py:half=2")
    found = json.loads(cli("runs", "rescore", "evals/mine", *half, "--json").out)
    assert found["saved"] is None and found["evaluations"][0]["reward_mean"] == 0.5 * (2 * 9 + 11) / 20
    end = cli("runs", "rescore", "evals/mine", *half, "--save")
    assert end.code == 0, end.err
    assert re.search(r"as saved +0.450 .*\n *scored again +0.450 .* 0.725 ", end.out), end.out
    saved = "evals/mine-rescored-half"
    assert f"saved in {saved}" in end.out
    with monkeypatch.context() as without_engine:  # whose containers may be of other tests of this process
        without_engine.setenv("PATH", str(tmp_path))
        assert cli("runs", "audit", saved).code == 0
    assert RunFolder.open(saved).status().status is RunStatus.DONE
    end = cli("compare", "evals/mine", saved)
    assert "reward: not compared, since other rewards scored" in end.out and "my.py:half=2" in end.out
    end = cli("compare", "evals/mine", saved, "--reward", "my.py:half=2", "--json")
    found = json.loads(end.out.splitlines()[-1])
    assert found["reward"]["equal"] == 20 and found["other_rewards"] == "", end.err
    assert [found[side]["reward_mean"] for side in ("first", "second")] == [0.725, 0.725]
    for words, said in ((("--save", "--episodes", "3"), "whole evaluations"), (("--save", "mine"), "already")):
        end = cli("runs", "rescore", "evals/mine", *half, *words)
        assert end.code == 2 and said in end.err


async def test_success_stays_what_it_was_where_the_new_rewards_say_nothing_of_it():
    records = saved(0, episode("a", 1.0), episode("b", 0.0))
    for one in records:
        one.episode.rewards = {"success": one.episode.reward}
    rows, result = as_evaluation(records, await rescored(*records), summarize_eval([[r.episode for r in records]], "m"))
    assert [one.known_success for one in rows[0]] == [True, False]
    assert (result.success, result.reward_mean) == (0.5, pytest.approx(1.7))


@pytest.mark.parametrize(
    ("words", "what"),
    [(["--reward", "exatc"], "exact"), (["--step", "last"], "--step is 'last'"), (["--evals"], "no saved evaluations")],
)
def test_wrong_words_are_the_users_mistake(cli, run_dir, words, what):
    end = cli("runs", "rescore", run_dir, *words)
    assert end.code == 2 and what in end.err
