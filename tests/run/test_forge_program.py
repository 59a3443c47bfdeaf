"""Programs in the form of torchforge's documents run: single episodes, and all of GRPO with tensors of its own."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

import agentgym
from agentgym import forge
from agentgym.errors import UserError
from agentgym.loops.actors import ReplayBufferActor as ReplayBuffer
from agentgym.loops.pieces import Pieces
from agentgym.models.tiny import policy_path
from agentgym.yaml import read_yaml

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


CONFIG = """
group_size: 4
local_batch_size: 8
max_req_tokens: 48
max_res_tokens: 16
model: {model}
dataset: {{model: "${{model}}", size: 4}}
policy:
  engine_args: {{model: "${{model}}", tensor_parallel_size: 1}}
  sampling_params: {{n: "${{group_size}}", max_tokens: "${{max_res_tokens}}"}}
trainer:
  model: {{hf_assets_path: "hf://${{model}}"}}
  training:
    local_batch_size: ${{local_batch_size}}
    seq_len: ${{sum:${{max_req_tokens}},${{max_res_tokens}}}}
    steps: 9
replay_buffer: {{batch_size: "${{local_batch_size}}", max_policy_age: 1, dp_size: 1}}
ref_model: {{compile: {{enable: false}}}}
services:
  policy: {{procs: 1, with_gpus: false, mesh_name: policy}}
  ref_model: {{procs: 1, with_gpus: false}}
  reward_actor: {{procs: 1, num_replicas: 2, with_gpus: false}}
actors:
  dataset: {{procs: 1, with_gpus: false}}
  trainer: {{procs: 1, with_gpus: false, mesh_name: trainer}}
agentgym:
  generator: {{engine: {{name: native}}}}
  logging: {{runs_dir: {runs}, sinks: []}}
"""


def program(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    command = [sys.executable, "-m", "forge_main", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env={**os.environ, "PYTHONPATH": path})


@pytest.mark.hostile
def test_a_program_of_torchforge_runs_with_other_imports_and_another_models_name(tmp_path: Path) -> None:
    (tmp_path / "theirs.yaml").write_text(CONFIG.format(model=policy_path(), runs=tmp_path / "runs"))
    done = program("--config", "theirs.yaml", "trainer.training.steps=2", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    [run] = (tmp_path / "runs").iterdir()
    [row] = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = row.get("metrics", row)
    assert found["reward/calls"] >= 16 and found["dataset/sample/count_samples_generated"] >= 4
    assert found["main_perf/all/loops/duration_avg_s"] <= found["main_perf/all/total_duration_max_s"]
    assert math.isfinite(found["train/loss"])
    config = read_yaml(run / "config.yaml")
    assert (config["loop"]["group_size"], config["loop"]["groups_per_step"], config["loop"]["steps"]) == (4, 2, 2)


def test_what_a_program_of_torchforge_can_not_have_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(
        ImportError, match=r"'SandboxedPythonCoder' of torchforge has no counterpart in agentgym\.forge"
    ):
        from agentgym.forge import SandboxedPythonCoder  # noqa: F401
    with pytest.raises(UserError, match="`provisioner` has no counterpart: set launcher and hosts in the config's"):
        forge.ProvisionerConfig(launcher_config=None)
