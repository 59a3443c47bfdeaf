"""A limit of wall time measures the machine: training scores what it cut, an evaluation does not."""

from __future__ import annotations

import asyncio

import pytest

from agentgym.env import Environment, Reply
from agentgym.evals.play import EvalSetup, cut_line, play_eval, summarize
from agentgym.rewards import Reward
from agentgym.rollout.activity import Activity
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.episode import EpisodePlayer
from agentgym.rollout.scoring import Scorer
from agentgym.testing import run_fast
from agentgym.text.chat import ChatRenderer
from agentgym.types import Episode, Outcome, Stop, Task

TASK = Task(task_id="t", prompt=({"role": "user", "content": "say yes"},))


class SayYes(Environment[None]):
    """Waits for `yes`; hangs on `hang`. start_s: what its start takes."""

    name = "say_yes"
    max_turns = 3

    def __init__(self, start_s: float) -> None:
        self.start_s = start_s

    def tasks(self, split, seed=0):
        yield TASK

    async def start(self, context):
        await asyncio.sleep(self.start_s)

    async def reply(self, context):
        said = context.messages[-1]["content"]
        if said == "hang":
            await asyncio.Event().wait()
        context.info["success"] = said == "yes"
        return Reply(messages=({"role": "user", "content": "again"},), done=said == "yes")


@pytest.fixture
def play(tokenizer, speaking):
    """evaluates: options of the evaluation that plays it; None: as training plays."""

    def run(
        said: str, *, evaluates: dict | None = None, start_s: float = 0.0, delay_s: float = 0.0, **limits
    ) -> Episode:
        environment = SayYes(start_s)
        yes = Reward(name="yes", function=lambda episode: float(episode.success), low=-1.0, inline=True)

        async def main() -> Episode:
            async with Scorer([yes], {"yes": 1.0}) as scorer:
                player = EpisodePlayer(
                    environment=environment, renderer=ChatRenderer(tokenizer), scorer=scorer, sandbox=None,
                    generator=speaking(said, delay_s=delay_s), config=RolloutConfig(**limits), activity=Activity(),
                )  # fmt: skip
                if evaluates is None:
                    return await player.play(TASK, episode_id="e", seed=7)
                setup = EvalSetup.of(environment, [TASK], samples_per_task=1, seed=7, greedy=False)
                none = {"known": {}, "ended": lambda number, sample, episode: None}
                [[episode]] = await play_eval(player, [TASK], setup, **none, **evaluates)
                return episode

        return run_fast(main())

    return run


CUTS = {  # what is said, how slow engine and environment are, the limit
    "a completion": ("yes", {"delay_s": 30.0}, {"generate_timeout_s": 0.02}),
    "an episode between turns": ("no", {"delay_s": 0.08}, {"episode_time_s": 0.1}),
    "an episode in a reply": ("hang", {"delay_s": 0.08}, {"episode_time_s": 0.1}),
    "an environment": ("no", {"delay_s": 30.0, "start_s": 0.18}, {"episode_time_s": 0.2}),
}


@pytest.mark.parametrize("name", CUTS)
def test_an_evaluation_leaves_out_what_a_limit_of_wall_time_cut_and_training_does_not(play, name) -> None:
    said, slow, limits = CUTS[name]
    [(limit, value)] = limits.items()
    trained = play(said, **slow, **limits)
    episode = play(said, evaluates={}, **slow, **limits)
    assert (episode.stop, episode.outcome, episode.reward) == (Stop.TIME, Outcome.INFRA_ERROR, None)
    assert (episode.error.kind, episode.time_limit) == ("cut", f"rollout.{limit} = {value}")
    result = summarize([[episode]], "p")
    assert (result.success, result.num_episodes, result.num_infra_errors) == (None, 0, 0)
    assert (result.num_cut, result.cut_by) == (1, f"rollout.{limit} = {value}")
    assert f"1 of 1 episodes of p reached rollout.{limit}" in cut_line(result)
    assert f"--rollout.{limit} {4 * value}" in cut_line(result)
    scored = play(said, evaluates={"scores_cuts": True}, **slow, **limits)
    assert (scored.outcome, scored.reward) == (trained.outcome, trained.reward)


def test_what_the_policy_did_is_scored_beside_what_was_cut(play) -> None:
    right, wrong = play("yes", evaluates={}), play("no", evaluates={})
    long = play("y" * 9, evaluates={}, max_turn_tokens=4)
    assert long.stop is Stop.TURN_TOKENS, "a limit of tokens is the policy's"
    cut = play("yes", evaluates={}, delay_s=30.0, generate_timeout_s=0.02)
    result = summarize([[right, cut], [wrong, long]], "p")
    assert (result.success, result.num_episodes, result.num_cut) == (0.5, 3, 1)  # of tasks, alike
    assert result.by_task == ((True, None), (False, False))
    assert cut_line(summarize([[right, wrong]], "p")) == ""
