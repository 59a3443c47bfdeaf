"""Programs in the form of torchforge's documents run: single episodes, and all of GRPO with tensors of its own."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

import agentgym
from agentgym.errors import UserError
from agentgym.loops.actors import ReplayBufferActor as ReplayBuffer
from agentgym.loops.pieces import Pieces
from agentgym.models.tiny import policy_path

sys.path.insert(0, str(Path(__file__).parent))
from forge_program import (  # as other processes import it
    ComputeAdvantages,
    DatasetActor,
    Pairs,
    RewardActor,
    ShortAnswer,
    any_digit,
    collate,
    generate_episode,
    grpo,
    multi_turn,
    simple_grpo_loss,
)

CPU = {"procs": 1, "with_gpus": False, "mesh_name": None}


async def test_the_documents_program_trains_with_its_own_actors_tensors_and_loss(lab, tmp_path: Path) -> None:
    recipe = lab.recipe(
        "env.name=math", "loss.kl_coef=0.1", "rollout.max_turn_tokens=16", f"logging.runs_dir={tmp_path}"
    )
    pieces = Pieces(completions=4, loss=simple_grpo_loss)
    agentgym.record_metric("of/an_earlier_run", 1.0)
    async with agentgym.services(recipe, name="forge", pieces=pieces) as services:
        dataloader, replay_buffer, compute_advantages, reward_actor = await asyncio.gather(
            DatasetActor.options(**CPU).as_actor(model=str(policy_path()), size=4),  # two steps' prompts
            ReplayBuffer.options(**CPU).as_actor(batch_size=8, max_policy_age=1, dp_size=1, collate=collate),
            ComputeAdvantages.options(**CPU).as_actor(),
            RewardActor.options(**CPU, num_replicas=2).as_service(reward_functions=[ShortAnswer(), any_digit]),
        )
        losses = await grpo(
            dataloader=dataloader,
            policy=services.generator,
            trainer=services.trainer,
            replay_buffer=replay_buffer,
            compute_advantages=compute_advantages,
            ref_model=services.reference,
            reward_actor=reward_actor,
            group_size=4,
            max_req_tokens=48,
            max_res_tokens=16,
            max_steps=2,
            flush=lambda step, metrics: services.record(step, [], metrics),
        )
        assert await services.generator.get_version() == 2 == (await services.trainer.get_status()).step
        with pytest.raises(UserError, match=r"train_step got a str; give groups, episodes, or tensors"):
            await services.trainer.train_step(["what"])
        assert (await multi_turn(services.generator, "1 + 1 =")).startswith("1 + 1 =")
        await asyncio.gather(
            DatasetActor.shutdown(dataloader),
            ReplayBuffer.shutdown(replay_buffer),
            ComputeAdvantages.shutdown(compute_advantages),
            reward_actor.shutdown(),
        )
    rows = [json.loads(line) for line in (tmp_path / "forge" / "metrics.jsonl").read_text().splitlines()]
    metrics = [row.get("metrics", row) for row in rows]
    assert [row["train/loss"] for row in metrics] == pytest.approx(losses, abs=1e-6)
    first = metrics[0]
    assert first["reward/evaluate_response/count_any_digit_calls"] >= 8
    assert 0 <= first["reward/evaluate_response/avg_ShortAnswer_reward"] <= 1
    assert first["dataset/sample/count_samples_generated"] >= 2 and "of/an_earlier_run" not in first
    assert "rollout/reward_mean" not in first, "it recorded no groups"


async def test_the_documents_episodes_go_one_by_one_into_the_buffer(lab, tmp_path: Path) -> None:
    pieces = Pieces(replay_buffer={"batch_size": 3})
    async with agentgym.services(
        lab.recipe("env.name=math", f"logging.runs_dir={tmp_path}"), pieces=pieces
    ) as services:
        dataloader = await Pairs.as_service(model=str(policy_path()))
        reward = await RewardActor.as_service(reward_functions=[any_digit])
        for _ in range(3):
            await generate_episode(dataloader, services.generator, reward, services.replay_buffer)
        batch = await services.replay_buffer.sample.route(curr_policy_version=0, batch_size=3)
        assert [len(one.prompt_ids) > 0 and 0 <= one.reward <= 1 for one in batch] == [True] * 3
        with pytest.raises(UserError, match=r"needs a loss over logits: give loss=, or .*Pieces\(loss="):
            await services.trainer.train_step([{}], [{}])
        played = [await services.environment.play_episode(await services.dataset.sample(), seed=n) for n in range(3)]
        for episode in played:
            episode.reward = float(len(episode.episode_id) % 2)
            await services.replay_buffer.add.call_one(episode)
        [one, *_] = await services.replay_buffer.sample(0)
        assert one in played, "an episode of ours is as old as its oldest token"
