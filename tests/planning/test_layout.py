"""Layouts that no machine could run: each is refused in one sentence with what would be possible."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentgym.errors import UserError
from agentgym.families.registry import architecture_of
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.select import VllmEngineConfig
from agentgym.models.released import RELEASED
from agentgym.planning.layout import refuse_impossible
from agentgym.planning.machine import Gpu, Machine
from agentgym.run.layers import finish_recipe
from agentgym.run.placement import placement_lines, settle_generators, settle_placement
from agentgym.trainer.config import TrainerConfig

MODEL = architecture_of(RELEASED["Qwen/Qwen3-0.6B"], "0.6B")  # 16 heads, 8 key-value heads, 40,960 positions
MACHINE = Machine(gpus=(Gpu(name="some", memory_gib=80.0),) * 8, cores=8)
GIVEN = {
    "model": {"path": "Qwen/Qwen3-0.6B"},
    "trainer": {"device": "cuda"},
    "generator": {"device": "cuda", "engine": {"name": "vllm"}},
}

IMPOSSIBLE = [
    ({"generator.engine.tensor_parallel": 3}, "16 attention heads, 8 key-value heads", "give 1, 2, 4, 8 or 16"),
    ({"trainer.procs": 3, "trainer.tensor_parallel": 3}, "trainer.tensor_parallel is 3", "give 1, 2, 4 or 8"),
    ({"trainer.procs": 16, "trainer.tensor_parallel": 16}, "8 key-value heads", "give 1, 2, 4 or 8"),
    ({"trainer.procs": 4, "trainer.data_parallel_shard": 3}, "make 4 rank(s)", "give 4, or -1"),
    ({"trainer.procs": 4, "trainer.data_parallel_shard": 2}, "make 4 rank(s)", "give 4, or -1"),
    ({"generator.max_model_len": 50_000}, "generator.max_model_len is 50000", "at most 40960"),
    ({"trainer.seq_len": 50_000}, "trainer.seq_len is 50000", "at most 40960"),
    ({"trainer.gpus": [1, 1], "trainer.procs": 2}, "names GPU 1 more than once", "name 2 different ones"),
    (
        {"generator.gpus": [0, 1, 1, 1], "generator.replicas": 2, "generator.engine.tensor_parallel": 2},
        "gives replica 1 GPU 1 more than once",
        "name 2 different ones for each replica",
    ),
    ({"generator.max_model_len": 2048, "rollout.max_episode_tokens": 4096}, "only 2048", "lower the first or raise"),
    ({"trainer.procs": 2, "trainer.tensor_parallel": 2, "trainer.seq_len": 4097}, "not a multiple", "give 4096"),
]


def with_fields(fields: dict[str, object]) -> dict[str, object]:
    made: dict[str, dict[str, object]] = {name: dict(section) for name, section in GIVEN.items()}
    for key, value in fields.items():
        *sections, name = key.split(".")
        section = made.setdefault(sections[0], {})
        for inner in sections[1:]:
            section[inner] = section = dict(section[inner])  # type: ignore[call-overload]
        section[name] = value
    return {**made}


@pytest.mark.parametrize(("fields", "reason", "possible"), IMPOSSIBLE, ids=lambda value: str(value)[:50])
def test_what_no_machine_could_run_is_refused_before_a_dry_run_or_a_run(
    fields: dict[str, object], reason: str, possible: str
) -> None:
    recipe = finish_recipe(with_fields(fields))[0]
    bold = replace(recipe, trainer=replace(recipe.trainer, check_memory=False))
    for begin in (
        lambda: placement_lines(recipe, MODEL, MACHINE),
        lambda: settle_placement(bold, MODEL, pytest.fail, MACHINE),  # it is not about memory
        lambda: settle_placement(replace(bold, launcher=Elsewhere()), MODEL, pytest.fail),
    ):
        with pytest.raises(UserError) as error:
            begin()
        first = str(error.value).split("\n")[0]
        assert reason in first and possible in first and "\n" not in first


class Elsewhere:
    """A launcher whose hosts give out their own GPUs."""

    def transport(self) -> str:
        return "tcp"


def test_what_would_be_possible_is_accepted_and_an_unknown_model_is_checked_for_the_rest() -> None:
    vllm = GeneratorConfig(replicas=1, max_model_len=40_960, engine=VllmEngineConfig(tensor_parallel=16))
    trainer = TrainerConfig(procs=16, tensor_parallel=8, data_parallel_shard=2, seq_len=40_960)
    refuse_impossible(MODEL, trainer, vllm, episode_tokens=40_960)
    two_on_one = GeneratorConfig(replicas=2, gpus=(1, 1), engine=VllmEngineConfig(gpu_memory_utilization=0.4))
    refuse_impossible(MODEL, None, two_on_one)
    with pytest.raises(UserError, match=r"make 8 rank"):
        refuse_impossible(None, replace(trainer, procs=64, data_parallel_shard=3), vllm)
    refuse_impossible(None, replace(trainer, seq_len=50_000), vllm)
    stretched = VllmEngineConfig(options={"hf_overrides": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}})
    refuse_impossible(MODEL, None, replace(vllm, max_model_len=100_000, engine=stretched))
    with pytest.raises(UserError, match="at most 40960"):
        settle_generators(finish_recipe(with_fields({"generator.max_model_len": 50_000}))[0], MODEL)


def test_fine_tuning_that_plays_is_checked_for_its_episodes_too() -> None:
    given = with_fields({"generator.max_model_len": 2048, "rollout.max_episode_tokens": 4096})
    sft = {**given, "sft": {"data": ["rows.jsonl"]}}
    recipe = finish_recipe(sft)[0]
    placement_lines(recipe, MODEL, MACHINE)  # it plays nothing
    with pytest.raises(UserError, match=r"generator\.max_model_len is only 2048"):
        placement_lines(finish_recipe({**sft, "env": {"name": "math"}})[0], MODEL, MACHINE)


def test_two_replicas_on_one_gpu_are_said() -> None:
    fields = {
        "generator.gpus": [2, 2],
        "generator.replicas": 2,
        "generator.engine.gpu_memory_utilization": 0.4,
        "trainer.activation_checkpoint": "selective",
    }
    lines = placement_lines(finish_recipe(with_fields(fields))[0], MODEL, MACHINE)
    assert "sharing      generators 0, 1 share GPU 2: each slows the other" in lines
