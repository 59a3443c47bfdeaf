"""The loop with a fake learner and generator: order, staleness, refills, crashes."""

import asyncio
import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest
from loop_fakes import FakeGenerator, FakeLearner, endless_tasks

from agentgym.loops.async_rl import Position, TrainingLoop
from agentgym.rl.config import LoopConfig
from agentgym.types import Episode, FinishReason, Group, Task, Turn, VersionSpan

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(
    config,
    *,
    rollout=None,
    position=None,
    has_signal=lambda group_id: True,
    slow=lambda group_id: False,
    change_loop=lambda loop: None,
    update_s=0.001,
):
    generator, learner, records = FakeGenerator(update_s), FakeLearner(), Records()
    rng = random.Random(0)

    async def play(task, group_id):
        start = generator.version
        await asyncio.sleep(0.05 if slow(group_id) else rng.random() / 500)
        episode = Episode(episode_id=str(group_id), task=task, seed=0)
        group = Group(group_id=group_id, task=task, start_version=start, episodes=[episode])
        group.advantages = [1.0 if has_signal(group_id) else 0.0]
        return group

    async def after_step(record):
        records.append(record)

    position = position or Position()
    generator.version = position.step
    loop = TrainingLoop(
        config=config,
        tasks=endless_tasks(position.next_group),
        rollout=rollout or play,
        learner=learner,
        generator=generator,
        after_step=after_step,
        position=position,
    )
    change_loop(loop)
    records.without_signal = asyncio.run(asyncio.wait_for(loop.run(), 20))
    return learner, records


class Records(list):
    """Of the steps; and the groups that the loop gave back at its end."""

    without_signal = ()


@pytest.mark.parametrize("update_s", [0.001, 0.02])
@pytest.mark.parametrize("max_staleness", [0, 1, 3])
def test_trains_within_the_staleness_bound_though_one_group_in_ten_is_slow(max_staleness, update_s):
    config = LoopConfig(steps=12, groups_per_step=3, max_staleness=max_staleness)
    learner, records = run(config, slow=lambda group_id: group_id % 10 == 3, update_s=update_s)
    staleness = [age for record in records for age in record.staleness]
    assert max(staleness) <= max_staleness
    assert (max(staleness) > 0) == (max_staleness > 0)
    assert len(learner.trained) == 36


@pytest.mark.parametrize("has_signal", [lambda group_id: True, lambda group_id: group_id % 4 > 0])
@pytest.mark.parametrize(("sync_interval", "max_staleness"), [(3, 2), (2, 3)])
def test_weights_are_published_every_few_steps_and_staleness_counts_the_trainers(
    sync_interval, max_staleness, has_signal
):
    config = LoopConfig(steps=11, groups_per_step=3, max_staleness=max_staleness, sync_interval=sync_interval)
    learner, records = run(config, has_signal=has_signal, slow=lambda group_id: group_id % 10 == 3, update_s=0.01)
    assert learner.published == [*range(sync_interval, 11, sync_interval), 11], "the last ones too"
    staleness = [max(record.staleness) for record in records]
    assert sync_interval - 1 <= max(staleness) <= max_staleness and len(records) == 11
    with pytest.raises(ValueError, match=r"sync_interval is 3 and .*max_staleness 1: give 1 to 2, or raise .* to 2"):
        LoopConfig(max_staleness=1, sync_interval=3)
    with pytest.raises(ValueError, match=r"sync_interval is 0 and .*max_staleness 1: give 1 to 2$"):
        LoopConfig(max_staleness=1, sync_interval=0)
    with pytest.raises(ValueError, match=r"can be negative: .*'max_staleness': -1"):
        LoopConfig(max_staleness=-1)


def test_trains_groups_in_the_order_in_which_they_began():
    config = LoopConfig(steps=10, groups_per_step=4, max_staleness=2)
    learner, _ = run(config, slow=lambda group_id: group_id % 7 == 0)
    assert learner.trained == list(range(40))


def test_skips_and_refills_groups_without_signal():
    config = LoopConfig(steps=6, groups_per_step=4, max_staleness=1)
    learner, records = run(config, has_signal=lambda group_id: group_id % 3 != 0)
    assert all(len(record.groups) == 4 for record in records)
    assert all(group_id % 3 for group_id in learner.trained)
    skipped = [group.group_id for record in records for group in record.skipped]
    assert sorted(learner.trained + skipped) == list(range(len(learner.trained) + len(skipped)))


def test_ends_when_no_group_has_signal_and_gives_back_those_it_played():
    config = LoopConfig(steps=5, groups_per_step=2, max_staleness=0, max_refills=2)
    learner, records = run(config, has_signal=lambda group_id: group_id < 4)
    assert [record.step for record in records] == [1, 2] and learner.published == [1, 2]
    assert [group.group_id for group in records.without_signal] == [4, 5, 6, 7]


def test_a_loop_that_is_stopping_ends_with_the_step_that_is_done():
    def stop_after_3(loop):
        after_step = loop.after_step

        async def stop(record):
            await after_step(record)
            loop.stopping = record.step == 3

        loop.after_step = stop

    learner, records = run(LoopConfig(steps=9, groups_per_step=2), change_loop=stop_after_3)
    assert [record.step for record in records] == learner.published == [1, 2, 3]


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_changed_config_holds_from_the_next_step_on_and_no_slot_is_lost(deterministic):
    """step: groups a step and staleness from the next one on."""
    changes = {3: (5, 2), 6: (2, 0), 8: (2, 4), 10: (3, 1), 14: (2, 0)}
    found = []

    def changing(loop):
        after_step = loop.after_step

        async def change(record):
            await after_step(record)
            found.append((loop.config, len(loop.began) + loop._slots.qsize()))
            if record.step in changes:
                groups, staleness = changes[record.step]
                await loop.change(replace(loop.config, groups_per_step=groups, max_staleness=staleness))

        loop.after_step = change

    config = LoopConfig(steps=20, groups_per_step=6, max_staleness=0, deterministic=deterministic)
    _, records = run(config, slow=lambda group_id: group_id % 7 == 3, change_loop=changing)
    assert len(records) == 20
    for record, (config, _) in zip(records, found, strict=True):
        assert len(record.groups) == config.groups_per_step and max(record.staleness) <= config.max_staleness
    assert [found[step][1] for step in (2, 19)] == [6, 2], "slots"
    ended = [group.group_id for record in records for group in (*record.groups, *record.skipped)]
    assert sorted(ended) == list(range(len(ended)))


def test_fewer_slots_between_publications_do_not_end_in_waiting():
    def changing(loop):
        async def change(record):
            if record.step == 3:  # whose five groups keep their slots until they are published, and the others are old
                await loop.change(replace(loop.config, groups_per_step=1, max_staleness=1))

        loop.after_step = change

    config = LoopConfig(steps=8, groups_per_step=5, max_staleness=2, sync_interval=2)
    learner, _ = run(config, change_loop=changing, update_s=0.02)
    assert learner.published == [2, 3, 4, 6, 8]


def test_no_refills_at_all_are_refused():
    with pytest.raises(ValueError, match=r"loop.max_refills is 0; give at least 1"):
        LoopConfig(max_refills=0)


@pytest.mark.parametrize("update_s", [0.001, 0.02])
@pytest.mark.parametrize("max_staleness", [0, 1])
def test_the_bound_holds_when_steps_go_on_with_fewer_groups(max_staleness, update_s):
    config = LoopConfig(steps=12, groups_per_step=4, max_staleness=max_staleness, max_refills=1)
    _, records = run(config, has_signal=lambda group_id: group_id % 3 == 0, update_s=update_s)
    assert any(len(record.groups) < 4 for record in records)
    assert max(age for record in records for age in record.staleness) <= max_staleness
    taken = [group.group_id for record in records for group in [*record.groups, *record.skipped]]
    assert sorted(taken) == list(range(len(taken)))
    ends_with_a_skipped_one = [r for r in records if r.skipped[-1].group_id > r.groups[-1].group_id]
    assert ends_with_a_skipped_one
    for record, following in itertools.pairwise(records):
        first = min(group.group_id for group in [*following.groups, *following.skipped])
        assert record.next_group == first, "a resumed run would play a skipped group again"


@pytest.mark.parametrize(("max_staleness", "deterministic"), [(0, False), (1, False), (1, True)])
def test_the_next_step_is_trained_while_the_generators_load_the_last_one(max_staleness, deterministic):
    """But for a synchronous loop, whose groups need the weights, and a deterministic one."""
    found = []

    def change(loop):
        step = loop.learner.step

        async def after_step(record):
            found.append(("after", record.step, loop.generator.version))
            await loop.held()
            assert loop.generator.version == record.step

        async def trained(groups):
            found.append(("trained", loop.learner.published[-1], loop.generator.version))
            return await step(groups)

        loop.after_step, loop.learner.step = (after_step if max_staleness == 0 else no_wait), trained

    async def no_wait(record):
        pass

    config = LoopConfig(steps=6, groups_per_step=2, max_staleness=max_staleness, deterministic=deterministic)
    learner = FakeLearner()
    learner.published.append(0)
    run(config, change_loop=lambda loop: (setattr(loop, "learner", learner), change(loop)), update_s=0.01)
    assert learner.published == [*range(7)]
    behind = [published - held for what, published, held in found if what == "trained"]
    assert max(behind) == (1 if max_staleness and not deterministic else 0)


@pytest.mark.parametrize("sync_interval", [1, 3])
def test_who_waits_for_it_finds_the_generators_with_the_weights_of_the_step(sync_interval):
    held = []

    def change(loop):
        async def after_step(record):
            held.append(record.step - loop.generator.version)
            await loop.held()
            assert loop.generator.version == record.step

        loop.after_step = after_step

    config = LoopConfig(steps=5, groups_per_step=2, max_staleness=2, sync_interval=sync_interval)
    run(config, change_loop=change, update_s=0.01)
    assert held == [1] * 5


def test_an_update_that_fails_ends_the_run_with_that_error_alone():
    def change(loop):
        async def fail(version):
            await asyncio.sleep(0.002)
            raise RuntimeError("no such weights")

        loop.generator.update_weights = fail

    with pytest.raises(ExceptionGroup) as ended:
        run(LoopConfig(steps=9, groups_per_step=2, max_staleness=2), change_loop=change)
    assert [str(error) for error in ended.value.exceptions] == ["no such weights"]


def sampled_by(*versions):
    """An episode of one turn with a token of each version."""
    count = len(versions)
    turn = Turn(
        prompt_ids=(1,),
        completion_ids=(2,) * count,
        logprobs=(-1.0,) * count,
        versions=tuple(VersionSpan(version=v, start=i, end=i + 1) for i, v in enumerate(versions)),
        finish_reason=FinishReason.STOP,
    )
    return Episode(episode_id="e", task=Task(task_id="t", prompt=()), seed=0, turns=[turn])


def test_a_group_is_as_old_as_the_oldest_token_that_would_be_trained():
    position = Position(step=5, next_group=0)

    async def play(task, group_id):
        current = position.step
        oldest = current - 1 if group_id % 2 else current
        episodes = [sampled_by(current), sampled_by(oldest, current), sampled_by(0)]
        group = Group(group_id=group_id, task=task, start_version=current, episodes=episodes)
        group.advantages = [1.0, 0.0, None]  # the last one is not trained, however old
        return group

    config = LoopConfig(steps=6, groups_per_step=3, max_staleness=0)
    learner, [record] = run(config, rollout=play, position=position)
    assert learner.trained == [0, 2, 4] and record.staleness == [0, 0, 0]
    assert [group.group_id for group in record.skipped] == [1, 3]


def test_resumes_at_the_first_group_that_was_not_taken():
    config = LoopConfig(steps=4, groups_per_step=3, max_staleness=2)
    _, records = run(config)
    position = Position(step=4, next_group=records[-1].next_group)
    learner, more = run(LoopConfig(steps=6, groups_per_step=3, max_staleness=2), position=position)
    assert learner.trained == list(range(12, 18))
    assert [record.step for record in more] == [5, 6]
    assert learner.published == [5, 6]


def test_a_lagging_generator_stays_that_far_behind(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    from arm import lag_behind

    config = LoopConfig(steps=8, groups_per_step=2, max_staleness=0)
    _, records = run(config, change_loop=lambda loop: lag_behind(loop, 3))
    assert [record.staleness[0] for record in records] == [0, 1, 2, 3, 3, 3, 3, 3]


def test_a_crash_in_a_rollout_ends_the_run():
    async def crash(task, group_id):
        raise RuntimeError("a bug")

    with pytest.raises(ExceptionGroup) as ended:
        run(LoopConfig(steps=1, groups_per_step=1), rollout=crash)
    assert ended.group_contains(RuntimeError, match="a bug")


def played(task, group_id, version, advantage):
    episode = Episode(episode_id=str(group_id), task=task, seed=0)
    return Group(group_id=group_id, task=task, start_version=version, episodes=[episode], advantages=[advantage])


def test_a_deterministic_loop_gives_each_group_the_same_weights_whatever_ends_first():
    config = LoopConfig(steps=9, groups_per_step=3, max_staleness=2, deterministic=True)

    def began(slow):
        loops, versions = [], {}

        async def play(task, group_id):
            versions[group_id] = loops[0].began[group_id]
            await asyncio.sleep(0.02 if slow(group_id) else 0)
            return played(task, group_id, versions[group_id], float(group_id % 3 > 0))

        learner, records = run(config, rollout=play, change_loop=loops.append)
        # what began for steps that did not come is left out: how much of it there was is a matter of time
        return learner.trained, {group: versions[group] for group in range(records[-1].next_group)}

    same = began(lambda group_id: False)
    assert began(lambda group_id: group_id % 4 == 0) == began(lambda group_id: group_id % 3 == 0) == same
    assert {*same[1].values()} == {*range(8)}


def test_a_deterministic_loop_goes_on_with_the_weights_that_its_groups_began_with():
    config = LoopConfig(steps=9, groups_per_step=3, max_staleness=2, deterministic=True)
    whole, positions = {}, {}

    def follow(into):
        def change(loop):
            after = loop.after_step

            async def after_step(record):
                into.update({group.group_id: group.start_version for group in [*record.groups, *record.skipped]})
                positions.setdefault(record.step, loop.position_at(record.step, record.next_group))
                await after(record)

            async def play(task, group_id):
                return played(task, group_id, loop.began[group_id], float(group_id % 4 > 0))

            loop.after_step, loop.rollout = after_step, play

        return change

    learner, _ = run(config, change_loop=follow(whole))
    for step in range(1, 9):
        assert len(positions[step].versions) == config.num_slots and len({*positions[step].versions}) > 1
        resumed = {}
        again, _ = run(config, position=positions[step], change_loop=follow(resumed))
        assert again.trained == learner.trained[3 * step :]
        assert resumed == {group: version for group, version in whole.items() if group in resumed} and resumed


def test_a_loop_in_phases_is_synchronous_then_asynchronous_then_untrained_and_ends(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    from loop import Phase, in_phases

    config = LoopConfig(steps=100, groups_per_step=2, max_staleness=3)
    bounds = ((0, 3), (1, 4), (3, 5), (None, 3))
    phases = [Phase(name="", max_staleness=bound, steps=steps, skip=0) for bound, steps in bounds]
    learner, records = run(config, change_loop=lambda loop: in_phases(loop, phases))
    assert [max(record.staleness) for record in records] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 3, 3, 3, 3, 3, 3]
    assert learner.published[-1] == 12
