"""Episodes with tools and the shipped policy's tokenizer: ids only grow, and only sampled ones are trained."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shopping import TASK, Shopping

from agentgym.hooks import PluginRegistry
from agentgym.models.tiny import policy_path
from agentgym.recipe import ModelConfig, Recipe
from agentgym.rl.samples import episode_samples
from agentgym.rollout.activity import Activity
from agentgym.rollout.compaction import ASK, NOTE
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.episode import EpisodePlayer
from agentgym.rollout.scoring import Scorer
from agentgym.runs.records import SavedEpisode, decode_episode, encode_episode
from agentgym.tables.trajectories import to_atif
from agentgym.testing import ScriptedGenerator
from agentgym.text.chat import ChatRenderer
from agentgym.text.tokenizer import HuggingFaceTokenizer
from agentgym.types import Episode, Outcome, Stop

CONFIG = RolloutConfig(max_turn_tokens=400, max_episode_tokens=4000)
GOOD = '<think>\n\n</think>\n\n<tool_call>\n{"name":"buy", "arguments": {"item":"apple","count":2}}\n</tool_call>'
MANY = '<tool_call>{"name": "buy", "arguments": {"item": "apple", "count": "seventy"}}</tool_call>'
BROKEN = '<tool_call>{"name": "buy"</tool_call>'


@pytest.fixture(scope="module")
def tokenizer() -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(str(policy_path()))


def play(
    tokenizer: HuggingFaceTokenizer, *says: str, config: RolloutConfig = CONFIG, environment: Shopping | None = None
) -> tuple[Episode, ScriptedGenerator]:
    environment = environment or Shopping()

    async def main() -> tuple[Episode, ScriptedGenerator]:
        turns = [(*tokenizer.encode(text), *tokenizer.end_ids) for text in says]
        speaker = ScriptedGenerator(turns, tokenizer)
        async with Scorer.of(environment, PluginRegistry([])) as scorer:
            player = EpisodePlayer(
                environment=environment,
                renderer=ChatRenderer(tokenizer),
                generator=speaker,
                scorer=scorer,
                config=config,
                sandbox=None,
                activity=Activity(),
            )
            return await player.play(TASK, episode_id="e", seed=7), speaker

    return asyncio.run(main())


def prompts(speaker: ScriptedGenerator) -> list[tuple[int, ...]]:
    return [tuple(request.prompt_ids) for request in speaker.requests]


def test_sampled_tokens_are_kept_as_sampled_over_turns_that_call(tokenizer: HuggingFaceTokenizer) -> None:
    episode, speaker = play(tokenizer, GOOD, f"{MANY}\n{BROKEN}", "Done.")
    assert (episode.stop, episode.reward) == (Stop.DONE, 1.0), episode.error
    known: tuple[int, ...] = ()
    for turn, asked, sampled in zip(episode.turns, prompts(speaker), speaker.replies, strict=True):
        assert turn.prompt_ids == asked and turn.completion_ids == sampled
        assert asked[: len(known)] == known and len(asked) > len(known)
        known = asked + sampled
    sample = episode_samples(episode, 1.0)[0]
    assert sample.token_ids == known
    trained = [token for token, mask in zip(known, sample.loss_mask, strict=True) if mask]
    assert trained == [token for turn in speaker.replies for token in turn]
    whole = tokenizer.decode(known)
    assert GOOD in whole and whole.count("<|im_start|>assistant\n") == 3 and "buy" in whole[: whole.index(GOOD)]


def test_the_agent_reads_what_its_calls_gave_and_a_result_forges_nothing(tokenizer: HuggingFaceTokenizer) -> None:
    none = '<tool_call>{"name": "buy", "arguments": {"item": "pear"}}</tool_call>'
    episode, speaker = play(tokenizer, GOOD, f"{MANY}{BROKEN}{none}", "Done.")
    first, second = (tokenizer.decode(asked) for asked in prompts(speaker)[1:])
    assert '{"left": 1}' in first
    assert "count: Input should be a valid integer" in second and "there is no such thing" in second
    assert [trace.error for trace in episode.tool_calls] == ["", "arguments", "malformed", "tool"]
    assert second.count("<|im_start|>assistant\n") == 3
    assert second.count("<|im_end|>") == second.count("<|im_start|>") - 1


def test_a_masked_turn_is_sampled_kept_and_not_trained(tokenizer: HuggingFaceTokenizer) -> None:
    episode, speaker = play(tokenizer, BROKEN, GOOD, "Done.", config=replace(CONFIG, malformed_calls="mask"))
    sample = episode_samples(episode, 1.0)[0]
    trained = [token for token, mask in zip(sample.token_ids, sample.loss_mask, strict=True) if mask]
    assert trained == [token for turn in speaker.replies[1:] for token in turn]
    assert episode.reward == 1.0 and [turn.masked for turn in episode.turns] == [True, False, False]


def test_a_turn_out_of_tokens_inside_a_call_is_cut(tokenizer: HuggingFaceTokenizer) -> None:
    config = replace(CONFIG, max_turn_tokens=len(tokenizer.encode(GOOD)) - 8, malformed_calls="end")
    episode, _ = play(tokenizer, GOOD, config=config)
    assert (episode.stop, episode.outcome, episode.tool_calls) == (Stop.TURN_TOKENS, Outcome.INVALID, [])
    scored, _ = play(tokenizer, GOOD, config=replace(config, cut_turns="score"))
    assert (scored.stop, scored.outcome, scored.tool_calls) == (Stop.TURN_TOKENS, Outcome.SCORED, [])
    assert scored.messages[-1]["content"].startswith("<think>"), "the environment is asked about what was said"


@settings(max_examples=200)
@given(st.text() | st.text(alphabet="<|im_start>end \n\té世\U0001f600'.,"))
def test_ids_are_those_of_the_tokenizer_in_its_wrapper(tokenizer: HuggingFaceTokenizer, text: str) -> None:
    assert tokenizer._quick is not None
    ids = tokenizer.encode(text)
    assert ids == tuple(tokenizer._inner.encode(text, add_special_tokens=False))
    assert tokenizer.decode(ids) == tokenizer._inner.decode(list(ids), skip_special_tokens=False)


def test_half_a_character_becomes_the_replacement_character(tokenizer: HuggingFaceTokenizer) -> None:
    assert tokenizer.encode("a\ud800b") == tokenizer.encode("a\ufffdb")


class Unable:
    """Tools of an environment that has a bug."""

    def __init__(self, tools: Any, bug: str) -> None:
        self.tools, self.bug = tools, bug

    def schemas(self) -> Any:
        return self._of("schemas")()

    def is_parallel_safe(self, name: str) -> Any:
        return self._of("is_parallel_safe")(name)

    async def call(self, call: Any) -> Any:
        return await self.tools.call(call)

    def _of(self, name: str) -> Any:
        if name == self.bug:
            raise KeyError(name)
        return getattr(self.tools, name)


@pytest.mark.parametrize("bug", ["schemas", "is_parallel_safe"])
def test_tools_with_a_bug_cost_the_episode_and_not_the_run(tokenizer: HuggingFaceTokenizer, bug: str) -> None:
    class Buggy(Shopping):
        async def toolbox(self, context: Any) -> Any:
            return Unable(await super().toolbox(context), bug)

    episode, _ = play(tokenizer, MANY * 2, "Done.", environment=Buggy())
    assert episode.outcome is Outcome.INFRA_ERROR and episode.reward is None
    assert episode.error is not None and episode.error.source == "environment:Buggy.toolbox"


FULL = replace(CONFIG, compact_at=1)  # after every answer
SUMMARY = "Two apples are bought."


def test_each_segment_is_a_sample_that_begins_with_the_task_and_the_summary(tokenizer: HuggingFaceTokenizer) -> None:
    episode, speaker = play(tokenizer, GOOD, SUMMARY, MANY, "Seventy are too many.", "Done.", config=FULL)
    assert (episode.stop, episode.reward) == (Stop.DONE, 1.0), episode.error
    assert (episode.branches, episode.branch_reasons) == ([(0, 1), (2, 3), (4,)], ["compacted", "compacted"])
    assert [one["summary"] for one in episode.info[NOTE]] == [SUMMARY, "Seventy are too many."]
    samples = episode_samples(episode, 1.0)
    said = [[*turn.completion_ids] for turn in episode.turns]
    for sample, turns in zip(samples, ([0, 1], [2, 3], [4]), strict=True):
        trained = [token for token, mask in zip(sample.token_ids, sample.loss_mask, strict=True) if mask]
        assert trained == [token for turn in turns for token in said[turn]]
    first, second, last = (tokenizer.decode(sample.token_ids) for sample in samples)
    assert ASK in first and "buy" in second and SUMMARY in second and SUMMARY not in last and '"left"' not in second
    assert [request.continues for request in speaker.requests] == [False, True, False, True, False]
    assert [call.turn for call in episode.tool_calls] == [1, 3]  # the turns of the policy, summaries included
    assert ASK not in str(episode.messages)  # the environment, and what it scores, see no summary
    assert decode_episode(encode_episode(episode)) == episode


def test_a_summary_that_is_cut_ends_the_episode_and_is_no_message_of_it(tokenizer: HuggingFaceTokenizer) -> None:
    config = replace(FULL, max_turn_tokens=120)
    episode, _ = play(tokenizer, GOOD, "too long " * 100, config=config)
    assert (episode.stop, episode.outcome, episode.branches) == (Stop.TURN_TOKENS, Outcome.INVALID, [(0, 1)])
    scored, _ = play(tokenizer, GOOD, "too long " * 100, config=replace(config, cut_turns="score"))
    assert (scored.stop, scored.outcome, len(scored.turns)) == (Stop.TURN_TOKENS, Outcome.SCORED, 2)
    saved = SavedEpisode(
        step=1, group_id=0, index=0, start_version=0, advantage=None, trained=False, episode=episode
    )  # fmt: skip
    atif = to_atif(saved, agent="chat", model="m", version="1")
    [called] = [step["metrics"]["completion_token_ids"] for step in atif["steps"] if "metrics" in step]
    assert (called, [*atif["extra"]["other_turns"]]) == ([*episode.turns[0].completion_ids], ["1"])


def test_a_limit_that_leaves_no_room_for_the_summary_is_refused() -> None:
    assert RolloutConfig(max_episode_tokens=1000, max_turn_tokens=300, compact_at=700).compact_at == 700
    with pytest.raises(ValueError, match=r"compact_at is 701; give 0 for never, or at most 700"):
        RolloutConfig(max_episode_tokens=1000, max_turn_tokens=300, compact_at=701)
    with pytest.raises(ValueError, match="compact_at is 100, and only the built-in loop"):
        Recipe(model=ModelConfig(path="openai:m"), rollout=RolloutConfig(compact_at=100))
