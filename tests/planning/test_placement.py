"""Who sits where, what is refused, and what is said to fit instead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentgym.errors import UserError
from agentgym.families.registry import architecture_of
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.select import VllmEngineConfig
from agentgym.generators.vllm.staging import OTHERS_BYTES, SPARE_BYTES
from agentgym.models.released import RELEASED
from agentgym.planning.advice import advice
from agentgym.planning.changes import changed
from agentgym.planning.machine import Gpu, Machine
from agentgym.planning.memory import STAGED_OTHERS_GIB, STAGED_SPARE_GIB
from agentgym.planning.placement import Wanted, assign
from agentgym.planning.shown import numbers
from agentgym.run.layers import finish_recipe
from agentgym.run.placement import placement_lines, settle_placement, wanted_of
from agentgym.trainer.config import LoraConfig, TrainerConfig
from agentgym.weights.config import WeightsConfig

QWEN = {size: architecture_of(RELEASED[f"Qwen/Qwen3-{size}"], size) for size in ("0.6B", "1.7B", "8B")}
TRAINER = TrainerConfig(device="cuda", dtype="bfloat16", seq_len=2048, activation_checkpoint="selective")
GENERATOR = GeneratorConfig(
    device="cuda", dtype="bfloat16", replicas=1, max_model_len=2048, engine=VllmEngineConfig(gpu_memory_utilization=0.8)
)


def machine(count: int, gib: float = 80.0) -> Machine:
    return Machine(gpus=(Gpu(name="some", memory_gib=gib),) * count, cores=8)


def wanted(size: str = "0.6B", *, trainer: object = None, **generator: object) -> Wanted:
    """With fields of either set."""
    return Wanted(
        model=QWEN[size],
        trainer=replace(TRAINER, **(trainer or {})),  # type: ignore[call-overload]
        generator=replace(GENERATOR, **generator),  # type: ignore[arg-type]
    )


def test_the_trainer_takes_the_first_gpus_and_each_replica_the_next() -> None:
    tensor = VllmEngineConfig(gpu_memory_utilization=0.8, tensor_parallel=2)
    placed = assign(wanted(trainer={"procs": 2}, replicas=2, engine=tensor), machine(8))
    assert (placed.trainer_gpus, placed.generator_gpus) == ((0, 1), (2, 3, 4, 5))
    assert [(proc.name, proc.gpu) for proc in placed.procs][-2:] == [
        ("generator 1 part 0", 4),
        ("generator 1 part 1", 5),
    ]
    assert placed.fits and any("unused" in note and "6, 7" in note for note in placed.notes)


def test_in_turns_each_has_the_memory_that_the_other_does_not_need_then() -> None:
    """Qwen3 8B on one GPU: a trainer's step, or a generator beside the weights and the optimizer's state."""
    engine = VllmEngineConfig(gpu_memory_utilization=0.4)
    together = assign(wanted("8B", engine=engine), machine(1, 180))
    assert not together.fits
    turns = assign(wanted("8B", engine=replace(engine, sleep=True)), machine(1, 180))
    assert turns.fits and not any("share" in note for note in turns.notes)
    procs = {proc.name: proc for proc in turns.procs}
    assert {name: proc.phase for name, proc in procs.items()} == {
        "trainer 0": "", "its step 0": "trainer", "generator 0": "generator", "generator 0, asleep": "trainer",
    }  # fmt: skip
    whole = assign(wanted("8B"), machine(2, 180)).procs[0]
    assert procs["trainer 0"].gib + procs["its step 0"].gib == pytest.approx(whole.gib)
    assert not assign(wanted("8B", engine=replace(engine, sleep=True)), machine(1, 140)).fits


def test_replicas_that_may_come_later_are_planned_for() -> None:
    growing = wanted(max_replicas=3)
    placed = assign(growing, machine(4))
    assert placed.fits and placed.generator_gpus == (1, 2, 3)
    refused = assign(growing, machine(3))
    assert not refused.fits
    assert assign(changed(growing, {"generator.max_replicas": 2}), machine(3)).fits


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"min_replicas": 2}, "min_replicas 2, replicas 1 and max_replicas 1: give 1 or more"),
        ({"min_replicas": 0}, "min_replicas 0"),
        ({"max_replicas": 2, "gpus": (0,)}, r"gpus \[0\] are 1; 2 replicas of 1 GPU"),
        ({"grow_after_s": 0}, "grow_after_s 0 and shrink_after_s 60: give more than 0 seconds"),
    ],
)
def test_replicas_that_contradict_are_refused(given: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        replace(GENERATOR, **given)  # type: ignore[arg-type]


def test_gpus_that_the_recipe_names_are_left_to_who_is_named() -> None:
    placed = assign(wanted(trainer={"gpus": (2,)}, replicas=3), machine(4))
    assert (placed.trainer_gpus, placed.generator_gpus) == ((2,), (0, 1, 3))
    placed = assign(wanted(gpus=(0,)), machine(2))
    assert (placed.trainer_gpus, placed.generator_gpus) == ((1,), (0,))


def test_of_many_gpus_those_that_are_alike_are_shown_once() -> None:
    few = assign(wanted(trainer={"procs": 4}, replicas=4), machine(8)).lines()
    assert sum(line.startswith("GPU ") for line in few) == 8
    many = assign(wanted(trainer={"procs": 64}, replicas=192), machine(512)).lines()
    shown = [line for line in many if line.startswith("GPU ")]
    assert [line.split()[1] for line in shown] == ["0-63", "64-255"] and all(line.endswith(", each") for line in shown)
    assert any(line.startswith("  generator 0-191 ") for line in many) and many[-1] == "unused       GPU 256-511"
    parts = wanted(replicas=8, engine=VllmEngineConfig(tensor_parallel=2))
    assert any("generator 0 part 0 to generator 7 part 1" in line for line in assign(parts, machine(32)).lines())
    assert numbers([0, 1, 3, 5, 6, 7, 9]) == "0, 1, 3, 5-7, 9" and numbers([]) == ""


def test_one_gpu_is_shared_where_both_fit_and_refused_with_a_share_that_does() -> None:
    small = VllmEngineConfig(gpu_memory_utilization=0.3)
    placed = assign(wanted(engine=small), machine(1))
    assert placed.fits and "share GPU 0" in placed.notes[0]
    too_much = wanted()
    refused = assign(too_much, machine(1))
    assert "GPU 0 has 80.0 GiB, of which 76.0 can be used, and about" in refused.problems[0]
    assert "trainer 0" in refused.problems[0] and "generator 0 65.2" in refused.problems[0]
    lines = advice(too_much, refused).split("\n")
    assert lines[1].startswith("  --generator.engine.gpu_memory_utilization 0.7 ")
    assert assign(changed(too_much, {"generator.engine.gpu_memory_utilization": 0.7}), machine(1)).fits


def test_what_cannot_be_there_is_one_message() -> None:
    for given, count, message in (
        (wanted(trainer={"procs": 4}), 2, "trainer.procs is 4, each on a GPU of its own, and the machine has 2"),
        (wanted(trainer={"gpus": (5,)}), 2, r"trainer.gpus names [5]; the machine has 2, counted from 0"),
        (wanted(), 0, "trainer.device is 'cuda' and there is no GPU; use 'auto' or 'cpu'"),
        (wanted(engine=VllmEngineConfig(tensor_parallel=4)), 2, "generator.engine.tensor_parallel is 4"),
        (wanted(trainer={"procs": 2, "gpus": (1,)}), 2, "trainer.gpus [1] are too few for trainer.procs 2"),
    ):
        placed = assign(given, machine(count))
        assert any(message in problem for problem in placed.problems), placed.problems


def test_gradients_are_reduced_once_where_whole_ones_fit_on_each_of_the_trainers_gpus() -> None:
    two = wanted("1.7B", trainer={"procs": 2, "rows_per_microbatch": 1})
    roomy, narrow = assign(two, machine(3, 80.0)), assign(two, machine(3, 22.0))
    assert (roomy.reduce_gradients, narrow.reduce_gradients) == ("last", "each") and roomy.fits and narrow.fits
    assert "unreduced" in roomy.procs[0].parts and "unreduced" not in narrow.procs[0].parts
    uneven = replace(machine(3), gpus=(*machine(1).gpus, *machine(1, 22.0).gpus, *machine(1).gpus))
    assert assign(two, uneven).reduce_gradients == "each"
    asked = wanted("1.7B", trainer={"procs": 2, "rows_per_microbatch": 1, "reduce_gradients": "last"})
    refused = assign(asked, machine(3, 22.0))
    assert "unreduced" in refused.problems[0]
    assert "--trainer.reduce_gradients each " in advice(asked, refused)
    never = wanted("1.7B", trainer={"procs": 2, "rows_per_microbatch": 1, "reduce_gradients": "each"})
    assert assign(never, machine(3, 80.0)).reduce_gradients == "each"
    given = {"model": {"path": "Qwen/Qwen3-1.7B"}, "generator": {"device": "cuda"}}
    made = finish_recipe(given | {"trainer": {"device": "cuda", "procs": 2}})[0]
    assert made.trainer.reduce_gradients == "auto"
    assert settle_placement(made, QWEN["1.7B"], lambda note: None, machine(4)).trainer.reduce_gradients == "last"


def test_weights_are_gathered_once_where_whole_ones_fit_and_before_gradients_are_reduced_once() -> None:
    two = wanted("1.7B", trainer={"procs": 2, "rows_per_microbatch": 1})
    found = {
        (placed.gather_weights, placed.reduce_gradients)
        for placed in (assign(two, machine(3, gib)) for gib in (80.0, 24.0, 22.0, 21.0, 20.0, 19.0))
        if placed.fits
    }
    assert found == {("once", "last"), ("once", "each"), ("each", "each")}
    asked = wanted("1.7B", trainer={"procs": 2, "rows_per_microbatch": 1, "gather_weights": "once"})
    refused = assign(asked, machine(3, 22.5))
    assert "gathered" in refused.problems[0] and "--trainer.gather_weights each " in advice(asked, refused)
    alone = assign(wanted("1.7B", trainer={"dtype": "bfloat16"}), machine(2, 80.0))
    assert (alone.gather_weights, alone.reduce_gradients) == ("once", "last")
    given = {"model": {"path": "Qwen/Qwen3-1.7B"}, "generator": {"device": "cuda"}}
    made = finish_recipe(given | {"trainer": {"device": "cuda"}})[0]
    assert settle_placement(made, QWEN["1.7B"], lambda note: None, machine(4)).trainer.gather_weights == "once"


def test_a_model_that_is_too_large_names_the_gpus_or_the_model_that_would_do() -> None:
    large = wanted("8B", trainer={"procs": 2, "rows_per_microbatch": 1, "float8": "rowwise"}, replicas=2)
    few = machine(4, 45.0)
    said = advice(large, assign(large, few))
    assert said == (
        "It would fit on 6 such GPUs with --trainer.procs 4. On this machine this would: --model.path Qwen/Qwen3-4B"
    )
    assert assign(changed(large, {"trainer.procs": 4}), machine(6, 45.0)).fits
    assert (
        not assign(large, machine(6, 45.0)).fits
        and not assign(changed(large, {"trainer.procs": 3}), machine(5, 45.0)).fits
    )


def test_a_cache_for_less_than_one_sequence_is_refused() -> None:
    tight = wanted(engine=VllmEngineConfig(gpu_memory_utilization=0.05), max_model_len=32768)
    [problem] = assign(tight, machine(2)).problems
    assert "gpu_memory_utilization 0.05 leaves" in problem and "max_model_len 32768 takes 3.5" in problem
    eighth = wanted(engine=VllmEngineConfig(gpu_memory_utilization=0.07, options={"kv_cache_dtype": "fp8"}))
    assert assign(eighth, machine(2)).fits


def test_the_reference_and_the_stored_versions_are_counted_where_they_are() -> None:
    both = replace(wanted("1.7B"), reference=True, gpu_versions=2, host_versions=3)
    placed = assign(both, replace(machine(2), shared_memory_gib=8.0))
    assert [proc.name for proc in placed.procs if proc.gpu == 0] == ["trainer 0", "reference 0"]
    assert placed.procs[0].parts["versions"] == pytest.approx(2 * 1.72e9 * 2 / 2**30, rel=0.01)
    [problem] = placed.problems
    assert "/dev/shm has 8.0 GiB free, and 3 versions of the weights take 9.6 GiB" in problem


def test_who_maps_the_versions_has_a_context_on_their_gpu() -> None:
    mapped = replace(wanted("1.7B", trainer={"procs": 2}), gpu_versions=2, mapped=True)
    mapped = replace(mapped, generator=replace(mapped.generator, replicas=2))  # type: ignore[type-var]
    first, second, *_ = assign(mapped, machine(4)).procs
    assert first.parts["readers"] == 1.0 and "readers" not in second.parts
    assert "readers" not in assign(replace(mapped, mapped=False), machine(4)).procs[0].parts
    many = replace(mapped, generator=replace(mapped.generator, replicas=100))  # type: ignore[type-var]
    assert assign(many, machine(102)).procs[0].parts["readers"] == 3.5, "of one host"
    alone = replace(mapped, trainer=replace(mapped.trainer, procs=1))  # type: ignore[type-var]
    assert "readers" not in assign(alone, machine(1, gib=300)).procs[0].parts, "they have one there anyway"


def test_a_reference_model_has_the_gpus_that_are_named_for_it() -> None:
    asked = replace(wanted(trainer={"reference_gpus": (1,)}), reference=True)
    placed = assign(asked, machine(4))
    assert [(proc.name, proc.gpu) for proc in placed.procs] == [
        ("trainer 0", 0),
        ("reference 0", 1),
        ("generator 0", 2),
    ]
    assert any("unused" in note and "3" in note for note in placed.notes)
    shared = assign(replace(asked, trainer=replace(asked.trainer, reference_gpus=())), machine(4))  # type: ignore[type-var]
    assert [proc.gpu for proc in shared.procs] == [0, 0, 1]
    assert assign(asked, machine(1)).problems == (
        "trainer.reference_gpus names [1]; the machine has 1, counted from 0",
    )


def test_updates_by_adapters_that_wait_for_merging_or_for_the_disk_are_noted() -> None:
    """Qwen3 8B has 6.95 billion numbers in the matrices of its layers, 12.9 GiB, and 8.19 in all, 15.3 GiB."""
    assert (STAGED_SPARE_GIB * 2**30, STAGED_OTHERS_GIB * 2**30) == (SPARE_BYTES, OTHERS_BYTES)

    def notes(
        share: float, *, lora: int = 32, gpus: int = 2, gib: float = 80, host: float | None = None, **engine: object
    ) -> list[str]:
        given = {"lora": LoraConfig(rank=lora), "procs": 1}
        own = VllmEngineConfig(gpu_memory_utilization=share, **engine)  # type: ignore[arg-type]
        placed = assign(wanted("8B", trainer=given, engine=own), replace(machine(gpus, gib), memory_gib=host))
        assert placed.fits
        return [note for note in placed.notes if note.startswith("merging")]

    assert notes(0.8) == notes(0.9, lora=0, gib=180) == []
    (note,) = notes(0.85)
    assert "take 12.9 GiB merged" in note and "room for 9.8" in note
    assert len(notes(0.85, gpus=3, tensor_parallel=2)) == 1, "each GPU merges all of it"
    (shared,) = notes(0.4, gpus=1)
    assert "room for 0.0" in shared
    assert notes(0.4, gpus=1, sleep=True) == notes(0.8, host=16.0) == []
    (disk,) = notes(0.8, host=15.0)
    assert "model folder's 15.3" in disk


def test_with_lora_a_version_is_its_adapters() -> None:
    adapters = 34_865_152 * 4 / 2**30  # of rank 32 on all seven matrices of Qwen3 1.7B, in float32
    lora = replace(wanted("1.7B", trainer={"lora": LoraConfig(rank=32)}), gpu_versions=2, host_versions=3)
    placed = assign(lora, replace(machine(2), shared_memory_gib=1.0))
    assert placed.procs[0].parts["versions"] == pytest.approx(2 * adapters) and placed.fits
    assert "/dev/shm" in assign(lora, replace(machine(2), shared_memory_gib=0.3)).problems[0]


def test_fine_tuning_plays_on_the_trainers_gpu_when_that_is_free() -> None:
    apart = replace(wanted(), together=False)
    placed = assign(apart, machine(1))
    assert placed.fits and (placed.trainer_gpus, placed.generator_gpus) == ((0,), (0,))
    assert not assign(replace(apart, together=True), machine(1)).fits


def test_a_run_is_refused_before_it_starts_unless_the_check_is_off() -> None:
    given = {"device": "cuda", "activation_checkpoint": "selective"}
    made = finish_recipe({"model": {"path": "Qwen/Qwen3-1.7B"}, "trainer": given, "generator": {"device": "cuda"}})[0]
    with pytest.raises(UserError, match=r"does not fit on the machine .*(?s:.*)GPU 0 has 24\.0 GiB(?s:.*)would fit"):
        settle_placement(made, QWEN["1.7B"], pytest.fail, machine(4, 24.0))
    bold = replace(made, trainer=replace(made.trainer, check_memory=False))
    notes: list[str] = []
    settled = settle_placement(bold, QWEN["1.7B"], notes.append, machine(4, 24.0))
    assert (settled.trainer.gpus, settled.generator.gpus) == ((0,), (1, 2))
    assert any("trainer.check_memory is false, and GPU 0 has 24.0 GiB" in note for note in notes)
    assert wanted_of(made, QWEN["1.7B"]).batch_tokens == 16 * 8 * made.rollout.max_episode_tokens
    with pytest.raises(UserError, match=r"trainer 0 .* weights 6\.4(?s:.*)such GPUs|would fit"):
        placement_lines(made, QWEN["1.7B"], machine(4, 24.0))


def test_a_refused_dry_run_has_every_problem_and_one_that_checks_no_memory_shows_them_and_goes_on() -> None:
    engine = {"name": "vllm", "gpu_memory_utilization": 0.1}
    given = {
        "model": {"path": "Qwen/Qwen3-1.7B"},
        "trainer": {"device": "cuda", "activation_checkpoint": "none"},
        "generator": {"device": "cuda", "engine": engine, "replicas": 1, "max_batch": 4, "max_model_len": 40_960},
    }
    made = finish_recipe(given)[0]
    small = replace(machine(2, 64.0), shared_memory_gib=4.0)
    problems = assign(wanted_of(made, QWEN["1.7B"]), small).problems
    assert len(problems) == 3, "the trainer's GPU, vLLM's cache and /dev/shm"
    with pytest.raises(UserError) as refused:
        placement_lines(made, QWEN["1.7B"], small)
    bold = replace(made, trainer=replace(made.trainer, check_memory=False))
    lines = placement_lines(bold, QWEN["1.7B"], small)
    assert any("trainer 0" in line for line in lines)
    for problem in problems:
        assert problem in str(refused.value)
        assert f"unchecked    trainer.check_memory is false, and {problem}" in lines
    with pytest.raises(UserError, match="the machine has 1"):  # no GPU for it is not about memory
        placement_lines(replace(bold, trainer=replace(bold.trainer, procs=2)), QWEN["1.7B"], machine(1))


def test_torchstore_on_the_gpus_of_one_machine_is_said_to_be_slow_before_the_start() -> None:
    given = {
        "model": {"path": "Qwen/Qwen3-1.7B"},
        "trainer": {"device": "cuda"},
        "generator": {"device": "cuda", "engine": {"name": "vllm"}, "replicas": 1},
        "weights": {"store": {"name": "torchstore"}},
    }
    slow = finish_recipe(given)[0]
    notes: list[str] = []
    settle_placement(slow, QWEN["1.7B"], notes.append, machine(2, 180.0))
    (note,) = [note for note in notes if note.startswith("slow ")]
    assert "a version's 3.4 GB at some 0.25 GB/s, 28 s an update; on one machine weights.store.name: cuda_ipc" in note
    assert note in placement_lines(slow, QWEN["1.7B"], machine(2, 180.0))
    quick = replace(slow, weights=WeightsConfig())
    adapters = replace(slow, trainer=replace(slow.trainer, lora=LoraConfig(rank=8)))
    for recipe in (quick, adapters):
        assert not any(line.startswith("slow ") for line in placement_lines(recipe, QWEN["1.7B"], machine(2, 180.0)))


def test_on_a_cpu_all_share_the_hosts_memory() -> None:
    made = finish_recipe({})[0]
    model = architecture_of(RELEASED["Qwen/Qwen3-8B"], "8B")
    with pytest.raises(UserError, match=r"the host's memory has 16\.0 GiB"):
        settle_placement(made, model, pytest.fail, Machine(cores=2, memory_gib=16.0))
    assert settle_placement(made, QWEN["0.6B"], pytest.fail, Machine(cores=2, memory_gib=80.0)) == made
