"""The buffer, the rows and the rewards in processes of their own."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from agentgym.actors.runtime import Runtime
from agentgym.errors import InfraError, UserError
from agentgym.loops.actors import DatasetActor, ReplayBufferActor
from agentgym.loops.rewards import RewardActor, RewardService
from agentgym.loops.rows import RowSource, RowStream
from agentgym.observed import OBSERVED
from agentgym.rollout.scoring import Scorer
from agentgym.types import Episode, Task

pytestmark = pytest.mark.hostile


async def test_a_buffer_a_data_set_and_rewards_answer_from_their_processes(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"number": n}) + "\n" for n in range(20)))
    sources = (RowSource(path="json", data_files=str(file)),)
    async with Runtime(log_dir=tmp_path / "logs"):
        rows = await DatasetActor.as_actor(sources, {"seed": 4})
        buffer = await ReplayBufferActor.as_actor({"batch_size": 2, "max_policy_age": 1, "seed": 3})
        drawn = await rows.call_one(DatasetActor.sample_many, 6, timeout_s=60)
        state = await rows.call_one(DatasetActor.state_dict, timeout_s=60)
        here = RowStream(sources=sources, seed=4)
        assert drawn == [here.draw() for _ in range(6)]
        here.load_state_dict(state)
        assert await rows.call_one(DatasetActor.sample, timeout_s=60) == here.draw()
        for number, row in enumerate(drawn):
            await buffer.call_one(ReplayBufferActor.add, row, number, timeout_s=60)
        [batch] = await buffer.call_one(ReplayBufferActor.sample, 5, timeout_s=60) or [[]]
        assert sorted(row["number"] for row in batch) == sorted(row["number"] for row in drawn[4:])
        with pytest.raises(UserError, match="could never fill"):
            await ReplayBufferActor.as_actor({"batch_size": 2, "max_buffer_size": 1})
        with pytest.raises(UserError, match="a mixture without data sets"):
            await DatasetActor.as_actor(())
        await DatasetActor.shutdown(rows)
        await ReplayBufferActor.shutdown(buffer)


async def test_rewards_are_replicas_and_one_that_hangs_costs_its_own(tmp_path: Path) -> None:
    async with Runtime(log_dir=tmp_path / "logs"):
        service = await RewardActor.options(num_replicas=2).as_service(["judges:Loaded", "judges:half", "judges:hangs"])
        rewards = RewardService(service=service, timeout_s=60)
        assert await rewards.evaluate_response("p", "yes", "yes") == pytest.approx((1 + 0.5 + 1) / 3)
        OBSERVED.take()
        each = await service.route(RewardActor.evaluate_each, "p", "no", "yes")
        assert [*each.items()] == [("Loaded", 0.0), ("half", 0.5), ("hangs", 1.0)] and not OBSERVED.take()
        await asyncio.gather(*(service.evaluate_response.route("p", "no", target="yes") for _ in range(3)))
        await service.probe.fanout()  # whatever is left comes with the next answer
        assert OBSERVED.values() == {f"reward/{name}_mean": score for name, score in each.items()}, "of both processes"
        hasty = RewardService(service=service, timeout_s=0.5)
        with pytest.raises(InfraError, match="no answer to evaluate_response within"):
            await hasty.evaluate_response("p", "hang", "yes")
        assert await rewards.evaluate_response("p", "yes", "yes") > 0.8  # by the other replica, or the new one
        while not service.get_metrics()["respawns_total"]:
            assert await rewards.evaluate_response("p", "yes", "yes") > 0.8
        await RewardActor.shutdown(service)
        judged = await RewardActor.as_service(["judges:of_episode"])
        reward = RewardService(service=judged).as_reward("judged", high=10.0)
        episode = Episode(episode_id="e", task=Task(task_id="t", prompt=()), seed=0)
        episode.messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        async with Scorer([reward], {"judged": 2.0}) as scorer:
            await scorer.score(episode)
        assert (episode.rewards, episode.reward) == ({"judged": 2.0}, 4.0)
        await RewardActor.shutdown(judged)
