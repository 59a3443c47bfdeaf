"""An episode with a generator whose words are given: tokens, limits, outcomes, retries."""

import asyncio
import sys
from dataclasses import replace

import pytest

from agentgym.env import Environment, Reply
from agentgym.errors import InfraError
from agentgym.rewards import Reward
from agentgym.rl.samples import episode_samples
from agentgym.rollout.activity import Activity
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.episode import EpisodePlayer
from agentgym.rollout.group import InfraMonitor, play_group
from agentgym.rollout.scoring import Scorer
from agentgym.sandbox import SandboxUnavailable
from agentgym.testing import run_fast
from agentgym.text.chat import ChatRenderer
from agentgym.types import Episode, Outcome, SandboxSpec, Stop, Task

TASK = Task(task_id="t", prompt=({"role": "user", "content": "say yes"},))


class SayYes(Environment[list[str]]):
    """Waits for `yes`; answers anything else, and breaks on command. Its state: what was said."""

    name = "say_yes"
    rewards = {"said_yes": 1.0}
    max_turns = 3

    def __init__(self, breaks=None) -> None:
        self.breaks = breaks or {}
        self.finished = []
        self.graded = 0
        self.contexts = []

    def tasks(self, split, seed=0):
        yield TASK

    async def start(self, context):
        self.contexts.append(context)
        await self._maybe_break("start")
        return ["started"]

    async def _maybe_break(self, where):
        broken = self.breaks.get(where)
        if broken == "hang":
            await asyncio.Event().wait()
        if isinstance(broken, float):
            await asyncio.sleep(broken)
        elif broken is not None:
            raise broken

    async def reply(self, context):
        said = context.messages[-1]["content"]
        context.state.append(said)
        if said == "forget the reply":
            return None
        if said == "crash":
            raise ZeroDivisionError("in the environment")
        if said == "slow":
            await asyncio.sleep(9)
        if said == "lose the sandbox":
            raise InfraError("sandbox gone")
        if said == "hang":
            await asyncio.Event().wait()
        if said == "wait for the engine":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise asyncio.CancelledError from SandboxUnavailable("the engine is gone")
        context.info["success"] = said == "yes"
        again = ({"role": "user", "content": "try again"},)
        return Reply(messages=() if said == "yes" else again, done=said == "yes", invalid=said == "bad")

    async def grade(self, context):
        self.graded += 1
        await self._maybe_break("grade")

    async def finish(self, context):
        self.finished.append(context.state)
        await self._maybe_break("finish")


def said_yes(episode: Episode) -> float:
    return 1.0 if episode.success else 0.0


@pytest.fixture
def play(tokenizer, speaking):
    def run(*says, config=None, reward=said_yes, breaks=None, task=TASK, sandbox=None, generator=None, **speaks):
        generator = generator or speaking(*says, **speaks)
        run.environment = environment = SayYes(breaks)

        async def main():
            scorer = Scorer([Reward(name="said_yes", function=reward, low=-1.0, inline=True)], {"said_yes": 1.0})
            player = EpisodePlayer(
                environment=environment,
                renderer=ChatRenderer(tokenizer),
                generator=generator,
                scorer=scorer,
                config=config or RolloutConfig(),
                sandbox=sandbox,
                activity=Activity(),
            )
            try:
                episode = await player.play(task, episode_id="e", seed=7)
                assert not player.activity.in_flight()
                return episode
            finally:
                await scorer.close()

        episode = run_fast(main())
        assert len(environment.finished) == episode.retries + 1
        return episode, generator

    return run


def test_a_first_right_answer_ends_and_is_scored(play):
    episode, _ = play("yes")
    assert (episode.stop, episode.outcome, episode.reward) == (Stop.DONE, Outcome.SCORED, 1.0)


def test_turns_continue_the_sampled_tokens_and_only_those_are_trained(play, tokenizer):
    episode, generator = play("no", "well", "yes")
    assert len(episode.turns) == 3
    first, second, _ = episode.turns
    assert second.prompt_ids[: len(first.prompt_ids) + 3] == first.prompt_ids + tokenizer.encode("no") + (2,)
    sample = episode_samples(episode, 1.0)[0]
    trained = [t for t, mask in zip(sample.token_ids, sample.loss_mask, strict=True) if mask]
    assert tokenizer.decode(trained) == "no<|im_end|>well<|im_end|>yes<|im_end|>"
    assert tokenizer.decode(sample.token_ids).startswith(
        tokenizer.render(episode.messages, generation_prompt=False)[:-1]
    )
    assert len({request.sampling.seed for request in generator.requests}) == 3


def test_wrong_answers_stop_at_the_turn_limit_with_a_score_of_zero(play):
    episode, _ = play("no")
    assert (episode.stop, episode.outcome, episode.reward) == (Stop.MAX_TURNS, Outcome.SCORED, 0.0)
    assert len(episode.turns) == 3


def test_the_recipes_turn_limit_counts_before_the_environments(play):
    episode, _ = play("no", config=RolloutConfig(max_turns=2))
    assert (episode.stop, len(episode.turns)) == (Stop.MAX_TURNS, 2)
    assert play.environment.contexts[0].max_turns == 2


@pytest.mark.parametrize("spec", [None, SandboxSpec()])
def test_only_a_task_that_asks_for_a_sandbox_gets_one(play, spec):
    class Named:
        name = "a sandbox"

    play("yes", task=replace(TASK, sandbox=spec), sandbox=Named())
    [context] = play.environment.contexts
    assert (context.sandbox and context.sandbox.name) == (None if spec is None else "a sandbox")


def test_what_start_returns_is_the_episodes_state_until_it_finishes(play):
    play("no", "yes")
    assert play.environment.finished == [["started", "no", "yes"]]


@pytest.mark.parametrize(
    ("broken", "kind"), [(ZeroDivisionError("at first"), "ZeroDivisionError"), ("hang", "TimeoutError")]
)
def test_finish_is_called_when_start_raised_or_timed_out(play, broken, kind):
    episode, _ = play("yes", breaks={"start": broken}, config=RolloutConfig(env_timeout_s=0.05))
    assert play.environment.finished == [None] and not episode.turns
    assert (episode.error.source, episode.error.kind) == ("environment:say_yes.start", kind)


def test_finish_is_called_when_the_episodes_time_is_over(play):
    episode, _ = play("hang", config=RolloutConfig(episode_time_s=0.05), breaks={"finish": OSError("late")})
    assert episode.stop is Stop.TIME and episode.error.source == "episode"
    assert play.environment.finished == [["started", "hang"]]


def test_finish_has_its_own_time_when_the_episodes_is_over(play):
    episode, _ = play("hang", config=RolloutConfig(episode_time_s=5), breaks={"finish": 30.0})
    assert episode.error.source == "episode" and episode.timing_s["environment_s"] == pytest.approx(35)


def test_a_turn_that_took_all_of_the_time_is_answered_in_full(play):
    config = RolloutConfig(episode_time_s=5, cut_turns="score")
    episode, _ = play("slowslow", config=config, delay_s=30)
    assert (episode.stop, episode.outcome, episode.error) == (Stop.TIME, Outcome.SCORED, None)
    assert episode.timing_s["environment_s"] == pytest.approx(9)


def test_an_error_in_finish_costs_the_episode_but_hides_no_earlier_one(play):
    episode, _ = play("yes", breaks={"finish": OSError("busy")})
    assert episode.error.source == "environment:say_yes.finish" and "busy" in episode.error.message
    episode, _ = play("crash", breaks={"finish": OSError("busy")})
    assert episode.error.source == "environment:say_yes.reply"


@pytest.mark.parametrize(
    ("says", "graded"), [("yes", 1), ("no", 1), ("slowslow", 1), ("bad", 0), ("crash", 0), ("hang", 0)]
)
def test_what_ended_and_earns_no_floor_is_graded_once_beyond_the_episodes_time(play, says, graded):
    config = RolloutConfig(episode_time_s=5, cut_turns="score", max_retries=0)
    episode, _ = play(says, config=config, breaks={"grade": 900.0}, delay_s=30 if says == "slowslow" else 0)
    assert play.environment.graded == graded and ("grade_s" in episode.timing_s) == bool(graded)
    assert (episode.outcome is Outcome.SCORED) == bool(graded)


def test_an_error_in_grade_costs_the_episode_which_finishes(play):
    episode, _ = play("yes", breaks={"grade": InfraError("no verdict")}, config=RolloutConfig(max_retries=1))
    assert (episode.error.source, episode.retries) == ("environment:say_yes.grade", 1)


def test_a_reply_that_is_none_is_the_environments_error(play):
    episode, _ = play("forget the reply")
    assert episode.error.source == "environment:say_yes.reply"
    assert episode.error.message == "it returned None; return a Reply"


def test_breaking_the_rules_earns_the_floor(play):
    episode, _ = play("bad")
    assert (episode.outcome, episode.reward) == (Outcome.INVALID, -1.0)


def test_a_turn_that_never_ends_is_cut_and_earns_the_floor(play):
    episode, _ = play("n" * 50, config=RolloutConfig(max_turn_tokens=10))
    assert (episode.stop, episode.outcome, episode.reward) == (Stop.TURN_TOKENS, Outcome.INVALID, -1.0)
    assert len(episode.turns[0].completion_ids) == 10


def test_a_cut_turn_is_scored_where_the_recipe_says_so(play):
    config = RolloutConfig(max_turn_tokens=3, cut_turns="score")
    episode, _ = play("yes", config=config)  # its end token is the fourth
    assert (episode.stop, episode.outcome, episode.reward) == (Stop.TURN_TOKENS, Outcome.SCORED, 1.0)


def test_what_was_cut_is_scored_and_not_trained_on_where_the_recipe_masks_it(play):
    config = RolloutConfig(max_turn_tokens=3, cut_turns="mask")
    episode, _ = play("yes", config=config)
    assert (episode.outcome, episode.reward, episode.num_trained_tokens) == (Outcome.SCORED, 1.0, 0)
    whole, _ = play("yes", config=RolloutConfig(cut_turns="mask"))
    assert whole.num_trained_tokens == 4


def test_the_episode_limit_counts_prompt_and_replies(play):
    config = RolloutConfig(max_turn_tokens=60, max_episode_tokens=100)
    episode, _ = play("n" * 40, config=config)
    assert episode.stop is Stop.EPISODE_TOKENS
    last = episode.turns[-1]
    assert len(last.prompt_ids) + len(last.completion_ids) <= 100


def test_lost_infrastructure_is_retried_and_the_retry_counts_alone(play):
    episode, _ = play("lose the sandbox", "yes")
    assert (episode.outcome, episode.retries, len(episode.turns)) == (Outcome.SCORED, 1, 1)


def test_infrastructure_that_stays_lost_is_never_a_zero(play):
    episode, _ = play(InfraError("no replica"))
    assert (episode.outcome, episode.reward, episode.retries) == (Outcome.INFRA_ERROR, None, 2)
    assert episode.error.source == "generator"


def test_a_crash_of_the_environment_is_recorded_under_its_name(play):
    episode, _ = play("crash")
    assert episode.outcome is Outcome.INFRA_ERROR
    assert episode.error.source == "environment:say_yes.reply"
    assert "in the environment" in episode.error.message


def test_a_hanging_environment_is_cut_off(play):
    episode, _ = play("hang", config=RolloutConfig(env_timeout_s=0.1))
    assert episode.error.kind == "TimeoutError" and episode.error.source == "environment:say_yes.reply"


@pytest.mark.parametrize(
    ("limit", "delay_s"),
    [({"env_timeout_s": 0.1}, 0.0), ({"episode_time_s": 0.1}, 0.0), ({"episode_time_s": 0.1}, 0.08)],
)
def test_who_waited_for_a_sandbox_is_not_to_blame(play, limit, delay_s):
    """Whichever time was over, and whatever the policy's tokens took of it."""
    episode, _ = play("wait for the engine", config=RolloutConfig(max_retries=0, **limit), delay_s=delay_s)
    assert episode.outcome is Outcome.INFRA_ERROR and episode.error.source == "sandbox"
    assert (episode.error.kind, episode.error.message) == ("SandboxUnavailable", "the engine is gone")


def test_a_completion_that_is_too_long_for_its_time_is_cut_like_one_with_too_many_tokens(play):
    slow = {"delay_s": 30.0, "config": RolloutConfig(generate_timeout_s=0.02)}
    episode, _ = play("n" * 9, **slow)
    assert (episode.stop, episode.outcome, episode.reward) == (Stop.TIME, Outcome.INVALID, -1.0)
    assert len(episode.turns[0].completion_ids) == 5  # and they are trained on
    scored, _ = play("yesyes", delay_s=30.0, config=replace(slow["config"], cut_turns="score"))
    assert (scored.stop, scored.outcome, scored.reward) == (Stop.TIME, Outcome.SCORED, 1.0)


def test_an_episode_whose_time_went_into_the_policys_tokens_earns_the_floor(play):
    episode, _ = play("no", config=RolloutConfig(episode_time_s=0.1), delay_s=0.08)
    assert (episode.stop, episode.outcome, episode.reward) == (Stop.TIME, Outcome.INVALID, -1.0)
    episode, _ = play("hang", config=RolloutConfig(episode_time_s=0.1), delay_s=0.08)
    assert (episode.stop, episode.outcome, episode.reward) == (Stop.TIME, Outcome.INVALID, -1.0)


def test_an_episode_whose_time_went_into_the_environment_is_left_out(play):
    """Also where the limit is reached while the policy speaks."""
    episode, _ = play("no", config=RolloutConfig(episode_time_s=0.2), delay_s=30.0, breaks={"start": 0.18})
    assert (episode.stop, episode.outcome, episode.reward) == (Stop.TIME, Outcome.INFRA_ERROR, None)
    assert "for the environment and its sandbox for the rest" in episode.error.message


def test_a_wait_in_the_engines_queue_is_none_of_the_episodes_time(play):
    episode, _ = play("no", config=RolloutConfig(episode_time_s=0.1), delay_s=0.08, queued_s=5.0)
    assert (episode.stop, episode.outcome, len(episode.turns)) == (Stop.MAX_TURNS, Outcome.SCORED, 3)


def test_an_engine_that_does_not_answer_is_no_slow_policy(play, speaking):
    generator = speaking("yes")
    generator.generate = lambda request: asyncio.Event().wait()
    episode, _ = play(
        generator=generator, config=RolloutConfig(generate_timeout_s=0.02, queue_timeout_s=5.0, max_retries=1)
    )
    assert (episode.outcome, episode.retries, episode.error.source) == (Outcome.INFRA_ERROR, 1, "generator")
    assert "not even a part of one, within 5.02 s" in episode.error.message


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 7.0, "yes"])
def test_a_reward_that_is_no_number_in_its_range_costs_the_episode(play, bad):
    episode, _ = play("yes", reward=lambda episode: bad)
    assert episode.outcome is Outcome.INFRA_ERROR
    assert episode.error.source == "reward:said_yes"


def test_a_raising_reward_costs_the_episode_and_is_named(play):
    def raising(episode):
        raise KeyError("lost")

    episode, _ = play("yes", reward=raising)
    assert (episode.outcome, episode.error.source) == (Outcome.INFRA_ERROR, "reward:said_yes")


def test_a_group_plays_its_episodes_with_different_seeds(tokenizer, speaking):
    async def main():
        scorer = Scorer([Reward(name="said_yes", function=said_yes, inline=True)], {"said_yes": 1.0})
        player = EpisodePlayer(
            environment=SayYes(),
            renderer=ChatRenderer(tokenizer),
            generator=speaking("yes"),
            scorer=scorer,
            config=RolloutConfig(),
            sandbox=None,
            activity=Activity(),
        )
        first = await play_group(player, TASK, group_id=3, size=4, run_seed=1)
        again = await play_group(player, TASK, group_id=3, size=4, run_seed=1)
        await scorer.close()
        return first, again

    first, again = asyncio.run(main())
    seeds = [episode.seed for episode in first.episodes]
    assert len(set(seeds)) == 4
    assert seeds == [episode.seed for episode in again.episodes]


def test_too_many_infrastructure_errors_end_the_run_with_the_causes(play):
    lost, _ = play(InfraError("no replica"))
    fine, _ = play("yes")
    monitor = InfraMonitor(max_share=0.25, at_least=8)
    for _ in range(6):
        monitor.add(fine)
    monitor.add(lost)
    monitor.add(lost)
    with pytest.raises(InfraError, match="3 x generator: InfraError"):
        monitor.add(lost)


def test_what_watches_for_infrastructure_errors_keeps_no_episode_that_nothing_broke(play):
    fine, _ = play("yes")
    monitor, references = InfraMonitor(max_share=1.0), sys.getrefcount(fine)
    monitor.add(fine)
    assert sys.getrefcount(fine) == references


def test_a_prompt_that_fills_the_episode_is_left_out_under_its_own_name(play):
    episode, generator = play("yes", config=RolloutConfig(max_turn_tokens=4, max_episode_tokens=20))
    assert episode.outcome is Outcome.INFRA_ERROR and episode.reward is None
    assert (episode.stop, episode.error.kind) == (Stop.EPISODE_TOKENS, "prompt_too_long")
    assert "rollout.max_episode_tokens is 20" in episode.error.message
    assert not generator.requests


@pytest.mark.parametrize("kind", ["unsupported", "prompt_too_long"])
def test_what_the_machine_did_not_break_does_not_count_as_broken_infrastructure(play, kind):
    lost, _ = play(InfraError("no replica"))
    unsupported = replace(lost, error=replace(lost.error, kind=kind))
    monitor = InfraMonitor(max_share=0.1, at_least=4)
    for _ in range(20):
        monitor.add(unsupported)
    assert monitor.total == 0
