"""The buffer's bounds, its policies, its seeds, and what it says of settings that could only hang."""

import importlib
import pickle
import random
from collections import Counter
from dataclasses import dataclass

import pytest

from agentgym.errors import UserError
from agentgym.loops.replay_buffer import ReplayBuffer


def filled(count=20, **settings):
    buffer = ReplayBuffer(**{"batch_size": 4, **settings})
    for number in range(count):
        buffer.add(number, number // 5)  # five of each version
    return buffer


def flat(batch):
    return [item for part in batch for item in part]


def test_a_batch_has_a_part_for_each_rank_and_every_item_is_sampled_once():
    buffer = filled(dp_size=2)
    first, second = buffer.sample(3), buffer.sample(3)
    assert [len(part) for part in first] == [4, 4]
    assert len({*flat(first), *flat(second)}) == 16 and len(buffer) == 4
    assert buffer.sample(3) is None and len(buffer) == 4
    assert len(flat(buffer.sample(3, batch_size=2))) == 4


def test_nothing_older_than_its_age_is_sampled():
    """At version 4 with an age of 2 the versions 2 and 3 are left; at 6 none."""
    buffer = filled(max_policy_age=2)
    assert {item // 5 for item in flat(buffer.sample(4)) + flat(buffer.sample(4))} <= {2, 3}
    assert buffer.sample(6) is None and len(buffer) == 0


def test_an_item_may_be_sampled_several_times_but_never_twice_in_a_batch():
    buffer = filled(8, max_samples=3)
    batches = [flat(buffer.sample(1)) for _ in range(6)]
    assert all(len(set(batch)) == 4 for batch in batches)
    assert Counter(item for batch in batches for item in batch) == dict.fromkeys(range(8), 3)


def test_a_full_buffer_drops_the_oldest_weights_first():
    buffer = ReplayBuffer(batch_size=1, max_buffer_size=3)
    for name, version in (("new", 5), ("old", 1), ("newer", 6), ("newest", 7)):
        buffer.add(name, version)
    assert sorted(flat(buffer.sample(7, batch_size=3))) == ["new", "newer", "newest"]


def test_policies_by_name_by_function_and_by_import_path():
    assert flat(filled(sample_policy="oldest").sample(3)) == [0, 1, 2, 3]
    assert flat(filled(sample_policy="newest").sample(3)) == [19, 18, 17, 16]
    evens = filled(eviction_policy=lambda entries, version, age: [a for a, e in enumerate(entries) if e.item % 2 == 0])
    assert all(item % 2 == 0 for item in flat(evens.sample(3)))
    by_path = filled(sample_policy="agentgym.loops.replay_buffer:sample_oldest")
    assert flat(by_path.sample(3)) == [0, 1, 2, 3]
    assert len(filled(eviction_policy="none", max_policy_age=0)) == 20


def test_uniform_sampling_is_seeded_and_uniform():
    assert filled(seed=3).sample(3) == filled(seed=3).sample(3) != filled(seed=4).sample(3)
    counts = Counter(item for seed in range(2000) for item in flat(filled(8, seed=seed).sample(1)))
    assert all(abs(counts[item] - 1000) < 120 for item in range(8))  # 5 standard deviations


def test_a_restored_buffer_gives_the_batches_that_would_have_come():
    buffer = filled(40, max_samples=2, max_policy_age=5)
    buffer.sample(5)
    again = ReplayBuffer(batch_size=4, max_samples=2, max_policy_age=5, seed=99)
    again.load_state_dict(pickle.loads(pickle.dumps(buffer.state_dict())))
    for version in (5, 6, 8, 8):
        buffer.add(f"new {version}", version)
        again.add(f"new {version}", version)
        assert again.sample(version) == buffer.sample(version) is not None


def test_the_global_random_numbers_are_left_alone():
    random.seed(1)
    expected = random.random()
    random.seed(1)
    filled(seed=7).sample(3)
    assert random.random() == expected


def test_a_buffer_that_can_never_fill_is_refused():
    with pytest.raises(UserError, match=r"at most 7 items and a batch takes 8 .* could never fill"):
        ReplayBuffer(batch_size=4, dp_size=2, max_buffer_size=7)
    with pytest.raises(UserError, match="could never fill"):
        filled(max_buffer_size=9).sample(3, batch_size=10)


def test_an_age_that_starves_the_trainer_is_said_not_waited_for():
    with pytest.raises(UserError, match="max_policy_age is -1, so everything is too old"):
        ReplayBuffer(batch_size=2, max_policy_age=-1)
    buffer = ReplayBuffer(batch_size=2, max_policy_age=1)
    buffer.evict(10)
    for number in range(7):
        buffer.add(number, 8)
        assert buffer.sample(10) is None
    with pytest.raises(UserError, match=r"the trainer starves: 8 items of ages 2 to 2 .* max_policy_age \(it is 1\)"):
        buffer.add(7, 8)


def test_many_that_are_too_old_starve_nobody_while_a_batch_is_left():
    buffer = ReplayBuffer(batch_size=2, max_policy_age=0)
    for number in range(40):
        buffer.add(number, 0 if number < 38 else 1)
    assert sorted(buffer.sample(1)[0]) == [38, 39]


def test_drops_between_batches_do_not_add_up():
    buffer = ReplayBuffer(batch_size=2, max_policy_age=1)
    for round_ in range(20):
        buffer.evict(round_ + 10)
        buffer.add("old", 0)
        for _ in range(2):
            buffer.add("new", round_ + 10)
        assert buffer.sample(round_ + 10) is not None


@dataclass
class Played:
    policy_version: int


def test_an_items_own_version_counts_and_one_without_is_refused():
    buffer = ReplayBuffer(batch_size=1, max_policy_age=0)
    buffer.add(Played(4))
    buffer.add(Played(3))
    assert buffer.sample(4) == [[Played(4)]] and len(buffer) == 0
    with pytest.raises(UserError, match="str has no policy_version"):
        buffer.add("what")


@pytest.mark.parametrize("places", [[0, 0, 1, 2], [0, 1, 2, 99], [-1, 1, 2, 3]])
def test_a_policy_that_gives_wrong_places_is_named(places):
    def mine(entries, count, version, rng):
        return places

    with pytest.raises(UserError, match="sample_policy mine gave the places"):
        filled(sample_policy=mine).sample(3)


def test_a_policy_that_does_not_exist_is_answered_with_the_nearest():
    with pytest.raises(UserError, match=r"no sample_policy 'unifrom'.*uniform"):
        ReplayBuffer(batch_size=1, sample_policy="unifrom")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("agentgym.jobs", "agentgym.run"),
        ("agentgym.rl.replay_buffer", "agentgym.loops.replay_buffer"),
        ("agentgym.loops.dataset", "agentgym.loops.actors"),
    ],
)
def test_an_import_from_an_old_place_names_the_new_one(old, new):
    with pytest.raises(ImportError, match=f"{old} is now {new}$"):
        importlib.import_module(old)
