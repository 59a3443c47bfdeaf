"""The loop in simulated time, against cases that are worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from agentgym.config import build, to_mapping
from agentgym.errors import UserError
from agentgym.families.registry import architecture_of
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.select import VllmEngineConfig
from agentgym.models.released import RELEASED
from agentgym.planning.machine import Gpu, Machine
from agentgym.planning.placement import Wanted
from agentgym.planning.rates import Rates, constant_lengths
from agentgym.planning.simulation import Forecast, Layout, in_flight_s, join_s_of, simulate
from agentgym.planning.splits import best_splits
from agentgym.rl.config import LoopConfig
from agentgym.trainer.config import TrainerConfig

# a sequence gets 100 tokens a second, up to 8 at a time; training takes 400 tokens a second
RATES = Rates(decode=((1, 100.0), (8, 800.0)), prefill=1e12, train=400.0, turns=constant_lengths(0, 100))
TWO = Layout(trainer=(0,), trainer_procs=1, replicas=((1,),), gpus=2, cores=8, max_batch=8)
ONE = replace(TWO, replicas=((0,),), gpus=1)
HOST = replace(TWO, trainer=(), replicas=((),), gpus=0, cores=2)


def forecast(rates: Rates = RATES, layout: Layout = TWO, *, staleness: int = 0, steps: int = 10) -> Forecast:
    """2 groups of 4 episodes a step."""
    loop = LoopConfig(groups_per_step=2, group_size=4, max_staleness=staleness)
    return simulate(rates, loop, layout, steps=steps)


def test_a_synchronous_step_is_the_sum_of_its_parts() -> None:
    found = forecast()  # 100 tokens of each at 100 a second, then 800 at 400
    assert found.step_s == pytest.approx(1.0 + 2.0)
    assert (found.generate_busy, found.train_busy) == pytest.approx((1 / 3, 2 / 3))
    assert found.tokens_per_s == pytest.approx(800 / 3)
    assert found.staleness_mean == 0.0
    slow = replace(RATES, publish_s=0.25, update_s=0.5, train_fixed_s=0.125)
    assert forecast(slow).step_s == pytest.approx(3.0 + 0.875)


def test_an_asynchronous_step_is_the_slower_of_the_two_and_the_loops_own_staleness() -> None:
    found = forecast(staleness=1)
    assert (found.step_s, found.train_busy, found.generate_busy) == pytest.approx((2.0, 1.0, 0.5))
    assert found.staleness_mean == 1.0
    faster = forecast(replace(RATES, train=1600.0), staleness=1)  # 0.5 s of training, and 16 episodes at a time for 8
    assert (faster.step_s, faster.generate_busy) == pytest.approx((1.0, 1.0))


def test_on_one_gpu_nothing_is_gained_by_overlapping() -> None:
    assert forecast(layout=ONE).step_s == pytest.approx(3.0)
    found = forecast(layout=ONE, staleness=1)
    assert found.step_s == pytest.approx(3.0)
    assert found.busy["GPU 0"] == pytest.approx(1.0)
    # both at half speed until the 1 s of sampling is done, then training alone
    assert (found.generate_busy, found.train_busy) == pytest.approx((2 / 3, 1.0))


def test_on_one_gpu_in_turns_each_is_idle_while_the_other_works() -> None:
    found = forecast(layout=ONE)
    assert (found.generate_busy, found.train_busy) == pytest.approx((1 / 3, 2 / 3))
    assert found.busy["GPU 0"] == pytest.approx(1.0)
    on_cpu = forecast(layout=HOST)
    assert (on_cpu.generate_busy, on_cpu.train_busy) == pytest.approx((1 / 3, 2 / 3))
    assert on_cpu.busy["host"] == pytest.approx(1 / 2)  # one of its two cores


def test_a_replica_that_is_never_idle_may_still_run_few_requests() -> None:
    assert forecast().batch_share == pytest.approx(1 / 3)  # 8 of 8 places, for 1 s of 3
    assert forecast(layout=replace(TWO, max_batch=32)).batch_share == pytest.approx(1 / 12)
    lengths = replace(RATES, train=1e12, decode=((1, 100.0), (2, 100.0)), turns=constant_lengths(0, 100))
    found = forecast(lengths, replace(TWO, replicas=((1,), (2,)), gpus=3))
    assert (found.generate_busy, found.batch_share) == pytest.approx((1.0, 1 / 2))  # 4 of 8 places of each


def test_the_controller_is_one_core_however_many_the_host_has() -> None:
    found = forecast(replace(RATES, host_s=0.1, train=1600.0))  # 1 s of sampling, 0.8 of its own, 0.5 of training
    assert found.step_s == pytest.approx(2.3)
    assert found.controller_busy == pytest.approx(0.8 / 2.3)
    assert found.busy["host"] == pytest.approx(0.8 / 2.3 / 8)
    limit = forecast(replace(RATES, host_s=0.5), staleness=3, steps=40)
    assert limit.controller_busy == pytest.approx(1.0)
    assert limit.step_s == pytest.approx(8 * 0.5, rel=0.03)  # what had begun before the first step counted is less


def test_more_than_a_batch_waits_and_a_second_replica_takes_half() -> None:
    assert forecast(layout=replace(TWO, max_batch=4)).step_s == pytest.approx(2.0 + 2.0)  # two waves
    flat = replace(RATES, decode=((1, 100.0), (4, 400.0), (8, 400.0)))  # 8 at a time are no faster than 4
    assert forecast(flat).step_s == pytest.approx(2.0 + 2.0)
    split = replace(TWO, replicas=((1,), (2,)), gpus=3)
    assert forecast(flat, split).step_s == pytest.approx(1.0 + 2.0)


def test_a_groups_prompt_is_computed_once_and_holds_up_all() -> None:
    prompts = replace(RATES, turns=constant_lengths(50, 100), prefill=100.0, train=1e12)
    assert forecast(prompts).step_s == pytest.approx(2 * 0.5 + 1.0, rel=1e-6)
    each = replace(TWO, replicas=tuple((gpu,) for gpu in range(1, 9)), gpus=9)  # every episode on a replica of its own
    assert forecast(prompts, each).step_s == pytest.approx(0.5 + 1.0, rel=1e-6)


def test_those_that_join_a_batch_hold_it_up_once_for_each_token_that_it_samples() -> None:
    rates = replace(RATES, decode=((1, 100.0), (2, 200.0)), join_s=0.25)
    assert in_flight_s(rates, [(0, 100), (0, 100)], 2) == pytest.approx(1.0)  # both begin, and join nobody
    assert in_flight_s(rates, [(0, 50), (0, 100), (0, 50)], 2) == pytest.approx(1.0 + 0.25)  # the third joins one
    assert in_flight_s(rates, [(0, 50), (0, 50), (0, 50), (0, 50)], 2) == pytest.approx(1.0)  # two after two
    four = replace(RATES, decode=((1, 100.0), (4, 400.0)), join_s=0.25)
    together = [(0, 50), (0, 50), (0, 100), (0, 100), (0, 50), (0, 50)]
    assert in_flight_s(four, together, 4) == pytest.approx(1.0 + 0.25)  # the last two join at the same time
    apart = [(0, 50), (0, 60), (0, 100), (0, 100), (0, 50), (0, 40)]
    assert in_flight_s(four, apart, 4) == pytest.approx(1.0 + 2 * 0.25)


def test_requests_that_wait_for_each_other_hold_up_the_others_less_often() -> None:
    """16 places and conversations of many short turns, so that one joins all the time."""
    turns = tuple(tuple((0, 10 + (7 * number + turn) % 20) for turn in range(8)) for number in range(16))
    rates = replace(RATES, decode=((1, 100.0), (16, 1600.0)), turns=turns, join_s=0.05, train=1e12)
    apart, together = (
        forecast(rates, replace(TWO, max_batch=16, join_together=together), staleness=3, steps=30)
        for together in (False, True)
    )
    assert together.step_s < 0.8 * apart.step_s
    none = (replace(TWO, max_batch=16, join_together=together) for together in (False, True))
    free = [forecast(replace(rates, join_s=0.0), layout, staleness=3).step_s for layout in none]
    assert free[0] == free[1] < together.step_s, "nothing is gained where joining costs nothing"


def test_what_joining_takes_is_found_from_the_time_of_requests_in_flight() -> None:
    requests = [(10 + number % 7, 20 + number * 13 % 50) for number in range(60)]
    rates = replace(RATES, prefill=1e4)
    for join_s in (0.0, 0.004, 0.3):
        took_s = in_flight_s(replace(rates, join_s=join_s), requests, 8)
        assert join_s_of(rates, requests, 8, took_s) == pytest.approx(join_s, rel=0.03, abs=1e-4)  # they cluster
    assert join_s_of(rates, requests, 8, 0.1) == 0.0  # quicker than the tokens alone


def test_turns_wait_for_the_environment_and_for_the_controllers_one_core() -> None:
    talk = replace(RATES, turns=(((0, 50), (0, 50)),), env_s=0.5, train=1e12)
    assert forecast(talk).step_s == pytest.approx(2 * (0.5 + 0.5), rel=1e-6)
    busy = replace(RATES, host_s=0.1, train=1e12)
    assert forecast(busy).step_s == pytest.approx(1.0 + 8 * 0.1, rel=1e-6)


def test_processes_on_a_cpu_share_its_cores() -> None:
    assert forecast(layout=HOST).step_s == pytest.approx(3.0)  # never more than one at a time
    assert forecast(layout=HOST, staleness=1).step_s == pytest.approx(2.0)
    crowded = replace(HOST, cores=1)
    assert forecast(layout=crowded, staleness=1).step_s == pytest.approx(3.0)
    slower = replace(RATES, cores_scaling=0.75)  # 1 s of sampling and of 2 of training take 4/3 s, then 1 s alone
    assert forecast(slower, HOST, staleness=1).step_s == pytest.approx(4 / 3 + 1.0)
    assert forecast(slower, HOST).step_s == pytest.approx(3.0)  # in turns each has the whole machine
    assert forecast(slower, staleness=1).step_s == pytest.approx(2.0)  # on GPUs it is of no matter
    # two replicas with 4 episodes each need 1 s of a core, the trainer 2 s: all three at 2/3 for 1.5 s, then one alone
    three = replace(HOST, replicas=((), ()))
    flat = replace(RATES, decode=((1, 400.0), (8, 400.0)))
    assert forecast(flat, three, staleness=1).step_s == pytest.approx(1.5 + 1.0)
    assert forecast(flat, replace(three, cores=1), staleness=1).step_s == pytest.approx(4.0)


def test_groups_without_signal_are_played_again_and_many_trainers_lose_a_little() -> None:
    quarter = replace(TWO, trainer=(0, 1, 2, 3), trainer_procs=4, replicas=((4,),), gpus=5)
    found = forecast(replace(RATES, train_scaling=0.9), quarter)
    assert found.step_s == pytest.approx(1.0 + 800 / (400 * 4 * 0.81))
    some = forecast(replace(RATES, signal=0.5, train=1e12), steps=200)
    assert some.step_s == pytest.approx(2.0, rel=0.35)  # twice as many groups, played in waves
    assert some.step_s > 1.4


def test_the_split_whose_halves_take_the_same_time_is_the_best() -> None:
    """8 GPUs, where a step is 4 s of one GPU's training and 12 s of one's sampling: 2 and 6."""
    model = architecture_of(RELEASED["Qwen/Qwen3-0.6B"], "0.6B")
    trainer = TrainerConfig(device="cuda", dtype="bfloat16", activation_checkpoint="selective")
    generator = GeneratorConfig(device="cuda", dtype="bfloat16", replicas=1, max_batch=1, engine=VllmEngineConfig())
    wanted = Wanted(model=model, trainer=trainer, generator=generator)
    rates = replace(RATES, train=100.0, train_scaling=1.0, decode=((1, 100.0),), turns=constant_lengths(0, 25))
    loop = LoopConfig(groups_per_step=12, group_size=4, max_staleness=1)
    machine = Machine(gpus=(Gpu(name="some", memory_gib=80.0),) * 8, cores=8)
    splits = best_splits(wanted, loop, replace(rates, train=300.0), machine)
    best = splits[0]
    assert (best.procs, best.replicas) == (2, 6) and best.forecast.step_s == pytest.approx(2.0)
    assert all(split.layout.join_together for split in splits), "as vLLM does"
    [own] = [split for split in splits if split.given]
    assert (own.procs, own.replicas) == (1, 1) and own.forecast.step_s == pytest.approx(12.0)
    with pytest.raises(UserError, match=r"does not fit on the machine \(2 GPU"):
        best_splits(wanted, loop, rates, Machine(gpus=(Gpu(name="small", memory_gib=8.0),) * 2, cores=8))


def test_rates_are_read_back_and_wrong_ones_refused() -> None:
    assert build(Rates, to_mapping(RATES)) == RATES
    assert RATES.decode_rate(4) == pytest.approx(400.0) and RATES.decode_rate(20) == 800.0
    for change, message in (
        ({"decode": [[8, 5.0], [1, 5.0]]}, "must ascend"),
        ({"train": 0.0}, "above 0"),
        ({"cores_scaling": 0.0}, "above 0"),
        ({"turns": [[]]}, "no turn"),
        ({"update_s": -1.0}, "can be negative"),
        ({"cores": -1}, "can be negative"),
        ({"decode": [[1, math.nan]]}, "decode with 1 sequences is nan; give a finite number"),
        ({"decode": [[1, 5.0], [64, math.inf]]}, "decode with 64 sequences is inf"),
        ({"env_s": math.nan}, "env_s is nan"),
        ({"train": math.inf}, "train is inf"),
    ):
        with pytest.raises(UserError, match=message):
            build(Rates, to_mapping(RATES) | change)


def test_a_point_of_the_curve_that_no_replica_can_have_is_named() -> None:
    """110, 95 and 105 tokens/s of each sequence; then 6100 and 5000 of all together."""
    [faster] = replace(RATES, decode=((1, 110.0), (64, 6100.0), (256, 27000.0))).doubts()
    assert "decode with 256 sequences is 27,000 tokens/s, 105 of each, and with 64 each has 95" in faster
    assert "give at most 24,400" in faster
    [slower] = replace(RATES, decode=((1, 110.0), (64, 6100.0), (256, 5000.0))).doubts()
    assert "decode with 256 sequences is 5,000 tokens/s in all, and with 64 it is 6,100" in slower
    for plausible in (((1, 110.0), (64, 6100.0), (256, 16000.0)), ((1, 100.0), (8, 801.0), (16, 790.0))):
        assert not list(replace(RATES, decode=plausible).doubts())
