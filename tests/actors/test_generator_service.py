"""Generators in processes of their own: what a death, a wrong request or a weight update may and may not do."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from lossy import LossyStore
from scripted import Scripted
from waiting import no_child_left, until

from agentgym.actors.launchers import LocalLauncher
from agentgym.actors.process_group import ProcessDied
from agentgym.actors.settings import ServiceSettings
from agentgym.errors import InfraError
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.service import GeneratorService, PublisherLost
from agentgym.plugin_errors import PluginError
from agentgym.types import GenerateRequest, SamplingParams
from agentgym.weights.select import TorchStoreConfig

pytestmark = pytest.mark.slow


@pytest.fixture
def hold(tmp_path: Path) -> Path:
    """A file: while it is there, an engine that is `held_by` it ends no request."""
    path = tmp_path / "hold"
    path.touch()
    return path


async def test_a_killed_replica_loses_no_request_and_comes_back_with_the_current_weights(fleet, hold) -> None:
    async with fleet(Scripted(held_by=hold)) as f:
        await f.publish(1)
        before = set(f.generators.pids())
        victim = f.generators.pids()[0]
        answers: Counter[int] = Counter()

        async def ask(number: int) -> None:
            request = f.request(number, max_tokens=10)
            completion = await f.generators.generate(request)
            answers[number] += 1
            assert completion.completion_ids == f.expected(request, 1)

        calls = [asyncio.create_task(ask(number)) for number in range(100)]
        await f.running(100)
        os.kill(victim, signal.SIGKILL)
        await until(lambda: victim not in f.generators.pids())
        hold.unlink()
        await asyncio.gather(*calls)
        assert answers == Counter(range(100)), "every request is answered exactly once"
        retries = f.generators.get_metrics()["generator/retries_total"]
        assert retries == 50, "the requests of the killed replica, and no others"

        await until(lambda: len(f.generators.pids()) == 2)
        assert victim not in f.generators.pids() and len(before & set(f.generators.pids())) == 1
        fresh = await asyncio.gather(*(f.generators.generate(f.request(n)) for n in range(20)))
        assert {v for completion in fresh for v in f.versions_of(completion)} == {1}
        metrics = await f.generators.metrics()
        assert metrics["generator/respawns_total"] == 1 and metrics["generator/replicas_up"] == 2


async def test_a_dead_engine_of_a_living_process_is_replaced_and_loses_nothing(fleet, hold, tmp_path, caplog) -> None:
    end, config = tmp_path / "end", GeneratorConfig(replicas=1, probe_every_s=3600)  # so that no probe finds it
    async with fleet(Scripted(held_by=hold, ended_by=end), launcher=LocalLauncher(), config=config) as f:
        await f.publish(1)
        (victim,) = f.generators.pids()
        requests = [f.request(number) for number in range(20)]
        calls = [asyncio.create_task(f.generators.generate(request)) for request in requests]
        await f.running(20)
        end.touch()
        hold.unlink()
        answers = await asyncio.gather(*calls)
        assert [answer.completion_ids for answer in answers] == [f.expected(request, 1) for request in requests]
        metrics = f.generators.get_metrics()
        assert (metrics["generator/respawns_total"], metrics["generator/retries_total"]) == (1, 20)
        assert f.generators.pids() != [victim] and not psutil.pid_exists(victim)
    said = "generator0 is down and starts again in 0.2 s: its engine is dead: it was told to end; its last output:"
    (warning,) = [line for line in caplog.messages if "is down" in line]
    assert said in warning and "the engine's last words" in warning


async def test_an_engine_that_ends_while_nobody_asks_is_found_by_a_probe(fleet, tmp_path) -> None:
    async with fleet(Scripted(ended_by=tmp_path / "end")) as f:
        (tmp_path / "end").touch()
        await until(lambda: f.generators.get_metrics()["generator/respawns_total"] == 1)
        await until(lambda: len(f.generators.pids()) == 2)


async def test_a_session_stays_with_one_replica_and_a_fanout_asks_both(fleet) -> None:
    async with fleet() as f:
        await f.publish(1)
        session, request = f.generators.new_session(), f.request(0)
        replicas = set()
        for number in range(4):  # equals take turns otherwise
            await f.generators.generate(f.request(number), session=session)
            replicas.add(session.replica)
        assert len(replicas) == 1 and None not in replicas and session.moves == 0
        answers = await f.generators.generate_everywhere(request)
        assert [answer.completion_ids for answer in answers] == [f.expected(request, 1)] * 2


async def test_weights_published_while_a_replica_is_dead_are_what_it_comes_back_with(fleet) -> None:
    async with fleet() as f:
        await f.publish(1)
        os.kill(f.generators.pids()[0], signal.SIGKILL)
        await until(lambda: len(f.generators.pids()) == 1)
        await f.publish(2)
        assert f.generators.version == 2
        await until(lambda: len(f.generators.pids()) == 2)
        requests = [f.request(n) for n in range(20)]
        for request, completion in zip(
            requests, await asyncio.gather(*map(f.generators.generate, requests)), strict=True
        ):
            assert completion.completion_ids == f.expected(request, 2)


async def test_a_dead_replica_is_noticed_while_nobody_asks(fleet) -> None:
    async with fleet(config=GeneratorConfig(probe_every_s=3600)) as f:  # so that no probe asks, either
        os.kill(f.generators.pids()[0], signal.SIGKILL)
        await until(lambda: len(f.generators.pids()) == 1)
        await until(lambda: len(f.generators.pids()) == 2)
        assert f.generators.get_metrics()["generator/respawns_total"] == 1


async def test_a_replica_that_hangs_is_found_by_its_probes_and_replaced(fleet) -> None:
    config = GeneratorConfig(probe_every_s=0.2, probe_timeout_s=1.0)
    async with fleet(launcher=LocalLauncher(), config=config) as f:
        hung = f.generators.pids()[0]
        os.kill(hung, signal.SIGSTOP)
        await until(lambda: hung not in f.generators.pids())
        await until(lambda: len(f.generators.pids()) == 2)
        await until(lambda: not psutil.pid_exists(hung))
        assert f.generators.get_metrics()["generator/missed_probes_total"] >= 3


@pytest.mark.hostile
async def test_a_controller_that_is_late_kills_no_healthy_replica(fleet) -> None:
    config = GeneratorConfig(probe_every_s=0.05, probe_timeout_s=1.0)
    async with fleet(launcher=LocalLauncher(), config=config) as f:
        before = f.generators.pids()
        for _ in range(10):
            await asyncio.sleep(0.06)  # a probe is on its way
            time.sleep(1.5)  # as many calls at once hold the event loop
        metrics = f.generators.get_metrics()
        assert f.generators.pids() == before
        assert metrics["generator/missed_probes_total"] == 0 and metrics["generator/respawns_total"] == 0


async def test_a_wrong_request_is_the_callers_error_and_restarts_nothing(fleet) -> None:
    async with fleet() as f:
        before = f.generators.pids()
        for _ in range(10):
            with pytest.raises(ValueError, match="prompt of 0 and 1 new tokens: allowed are 1 to 1024"):
                await f.generators.generate(GenerateRequest(prompt_ids=(), sampling=SamplingParams(max_tokens=1)))
        await asyncio.sleep(1.0)  # probes would have found something
        metrics = f.generators.get_metrics()
        assert f.generators.pids() == before
        assert metrics["generator/respawns_total"] == 0 and metrics["generator/retries_total"] == 0


async def test_a_ctrl_c_that_reaches_the_replicas_does_not_stop_them(fleet) -> None:
    async with fleet(launcher=LocalLauncher()) as f:
        before = f.generators.pids()
        for pid in before:
            os.kill(pid, signal.SIGINT)
        await asyncio.sleep(0.5)
        await f.generators.generate(f.request(1))
        assert f.generators.pids() == before, "the parent alone decides how a run ends"


async def test_an_update_during_requests_is_seen_in_their_spans_and_by_all_that_follow(fleet, hold) -> None:
    async with fleet(Scripted(held_by=hold)) as f:
        await f.publish(1)
        calls = [asyncio.create_task(f.generators.generate(f.request(n))) for n in range(20)]
        await f.running(20)
        await f.publish(2)
        assert not any(call.done() for call in calls), "the update waited for no request"
        hold.unlink()
        during = await asyncio.gather(*calls)
        assert all([s.version for s in completion.versions] == [1, 2] for completion in during)
        requests = [f.request(n) for n in range(20)]
        after = await asyncio.gather(*map(f.generators.generate, requests))
        assert all(
            completion.completion_ids == f.expected(request, 2)
            for request, completion in zip(requests, after, strict=True)
        )


async def test_an_update_to_weights_that_do_not_exist_changes_nothing(fleet) -> None:
    async with fleet() as f:
        await f.publish(1)
        with pytest.raises(KeyError, match=r"no weights of version 5 to update to; the store holds \[1\]"):
            await f.generators.update_weights(5)
        assert f.generators.version == 1 and len(f.generators.pids()) == 2


class Trainer:
    """Has the weights in its memory; it comes back where a test says so."""

    def __init__(self) -> None:
        self.asked = 0
        self.back = asyncio.Event()

    async def revive(self) -> None:
        self.asked += 1
        await self.back.wait()


async def test_an_update_whose_weights_are_lost_waits_for_the_trainer_and_costs_no_replica(fleet) -> None:
    trainer = Trainer()
    async with fleet(store_class=LossyStore, revive=trainer.revive, settings=ServiceSettings(max_respawns=0)) as f:
        await f.publish(1)
        before = f.generators.pids()
        f.store.lost.touch()
        update = asyncio.create_task(f.publish(2))
        await until(lambda: trainer.asked == 2)
        meanwhile = await f.generators.generate(f.request(1))
        assert meanwhile.completion_ids == f.expected(f.request(1), 1) and not update.done()
        f.store.lost.unlink()
        trainer.back.set()
        await update
        requests = [f.request(number) for number in range(20)]
        after = await asyncio.gather(*map(f.generators.generate, requests))
        assert [a.completion_ids for a in after] == [f.expected(request, 2) for request in requests]
        assert f.generators.pids() == before


async def test_a_replica_that_comes_back_while_the_trainer_is_away_waits_for_the_weights(fleet) -> None:
    trainer = Trainer()
    settings = ServiceSettings(max_respawns=1, backoff_s=0.05, probe_every_s=0.3, probe_timeout_s=30)
    async with fleet(store_class=LossyStore, revive=trainer.revive, settings=settings) as f:
        await f.publish(1)
        f.store.lost.touch()
        os.kill(f.generators.pids()[0], signal.SIGKILL)
        await until(lambda: trainer.asked == 1)
        answers = await asyncio.gather(*(f.generators.generate(f.request(number)) for number in range(8)))
        assert {v for answer in answers for v in f.versions_of(answer)} == {1} and len(f.generators.pids()) == 1
        f.store.lost.unlink()
        trainer.back.set()
        await until(lambda: len(f.generators.pids()) == 2)
        assert f.generators.get_metrics()["generator/respawns_total"] == 1


async def test_weights_of_a_trainer_that_does_not_come_back_end_the_update_with_its_reason(fleet) -> None:
    async def revive() -> None:
        raise ProcessDied("the trainer was lost 4 times")

    async with fleet(store_class=LossyStore, revive=revive) as f:
        await f.publish(1)
        before = f.generators.pids()
        f.store.lost.touch()
        with pytest.raises(PublisherLost, match="lost with the process that published them: the trainer was lost 4"):
            await f.publish(2)
        assert f.generators.pids() == before


async def test_a_replica_that_cannot_load_an_update_never_serves_again(fleet, tmp_path) -> None:
    settings = ServiceSettings(max_respawns=1, backoff_s=0.05, probe_every_s=0.3, probe_timeout_s=30)
    async with fleet(settings=settings) as f:
        path = f.store.folder / "1.safetensors"
        path.write_bytes(b"no safetensors at all, longer than eight bytes")
        await f.generators.update_weights(1)
        with pytest.raises(InfraError, match=r"generator\d died 2 times in a row and is not started again"):
            await f.generators.generate(f.request(1))


async def test_a_replica_that_always_dies_ends_the_service_with_the_reason(fleet) -> None:
    settings = ServiceSettings(max_respawns=2, backoff_s=0.05, probe_every_s=0.3, probe_timeout_s=30)
    config = GeneratorConfig(replicas=1)
    async with fleet(config=config, settings=settings) as f:
        for _ in range(3):
            await until(lambda: len(f.generators.pids()) == 1)
            os.kill(f.generators.pids()[0], signal.SIGKILL)
            await until(lambda: not f.generators.pids())
        with pytest.raises(InfraError, match=r"generator0 died 3 times in a row.*max_respawns is 2.*died"):
            await f.generators.generate(f.request(1))


async def test_a_request_that_kills_its_replica_fails_before_it_has_killed_all(fleet) -> None:
    settings = ServiceSettings(max_attempts=2, max_respawns=5, backoff_s=0.05)
    async with fleet(Scripted(poison_token=7), launcher=LocalLauncher(), settings=settings) as f:
        poison = GenerateRequest(prompt_ids=(7, 1), sampling=SamplingParams(max_tokens=1))
        with pytest.raises(InfraError, match="generate lost 2 replicas in a row; does it kill them"):
            await f.generators.generate(poison)
        await f.generators.generate(f.request(1))  # the others wait for a respawn and are served


async def test_a_cancelled_call_frees_its_place_in_the_engine(fleet) -> None:
    async with fleet(Scripted(token_s=0.5)) as f:
        call = asyncio.create_task(f.generators.generate(f.request(1, max_tokens=1000)))
        await f.running(1)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await f.running(0)


async def test_an_engine_that_cannot_start_says_why_and_leaves_no_process(fleet) -> None:
    async with no_child_left():
        with pytest.raises(PluginError, match="raised ValueError: no such model"):
            async with fleet(Scripted(start_error="no such model"), launcher=LocalLauncher()):
                pass


async def test_totals_survive_the_replica_that_earned_them(fleet) -> None:
    async with fleet() as f:
        await asyncio.gather(*(f.generators.generate(f.request(n, max_tokens=5)) for n in range(40)))
        assert (await f.generators.metrics())["generator/tokens_total"] == 200
        os.kill(f.generators.pids()[0], signal.SIGKILL)
        await until(lambda: f.generators.get_metrics()["generator/respawns_total"] == 1)
        await until(lambda: len(f.generators.pids()) == 2)
        metrics = await f.generators.metrics()
        assert metrics["generator/tokens_total"] == 200 and metrics["generator/route_p50_s"] > 0
        names = {replica.group.name for replica in f.generators._started().replicas}
        assert f.generators._seen.keys() == names, "what ended is in the sums alone"


@pytest.mark.hostile
async def test_generators_load_weights_from_torchstore_as_from_shared_memory(fleet, tmp_path) -> None:
    pytest.importorskip("torchstore")
    async with fleet(launcher=LocalLauncher()) as f:  # Monarch's messages carry its weights
        theirs = await TorchStoreConfig().open("generators", keep=2, runtime=None)
        generators = GeneratorService(
            config=GeneratorConfig(replicas=1, engine=Scripted()), store=theirs, model_path=""
        )
        await generators.start()
        await theirs.put(1, f.weights(1))
        await generators.update_weights(1)
        await f.publish(1)
        request = f.request(3)
        answers = [await g.generate(request) for g in (generators, f.generators)]
        assert answers[0] == answers[1] and answers[0].completion_ids == f.expected(request, 1)
        await generators.close()
        await theirs.close()


@pytest.mark.hostile  # it starts four processes
async def test_a_queue_brings_a_replica_with_the_current_weights_which_goes_again_when_it_is_idle(fleet, hold) -> None:
    config = GeneratorConfig(
        replicas=1, max_replicas=2, max_batch=4, grow_after_s=0.1, shrink_after_s=0.3, probe_timeout_s=30
    )
    async with fleet(Scripted(held_by=hold), config=config) as f:
        await f.publish(1)
        for times in (1, 2):  # the second new replica must not pass for the first one, which held these weights
            requests = [f.request(number) for number in range(16)]
            calls = [asyncio.create_task(f.generators.generate(request)) for request in requests]
            await until(lambda: len(f.generators.pids()) == 2)
            calls += [asyncio.create_task(f.generators.generate(request)) for request in requests]
            await f.running(32)
            hold.unlink()
            for request, call in zip(requests * 2, calls, strict=True):
                assert (await call).completion_ids == f.expected(request, 1)
            await until(lambda: len(f.generators.pids()) == 1)
            metrics = await f.generators.metrics()
            assert (metrics["generator/grown_total"], metrics["generator/shrunk_total"]) == (times, times)
            assert metrics["generator/idle_share"] == 1.0 and metrics["generator/respawns_total"] == 0
            hold.touch()


async def test_a_leaving_replica_still_gets_the_weights_of_what_it_works_on(fleet, hold) -> None:
    config = GeneratorConfig(min_replicas=1, grow_after_s=3600, shrink_after_s=3600, probe_timeout_s=30)
    async with fleet(Scripted(held_by=hold), config=config) as f:
        await f.publish(1)
        calls = [asyncio.create_task(f.generators.generate(f.request(number))) for number in range(4)]
        await f.running(4)
        service = f.generators._started()
        assert service.shrink()
        await f.publish(2)
        hold.unlink()
        for call in calls:
            assert [span.version for span in (await call).versions] == [1, 2]
        await until(lambda: len(f.generators.pids()) == 1)
