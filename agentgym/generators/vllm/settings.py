"""Our settings in vLLM's terms."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym.errors import UserError, nearest
from agentgym.generators.config import GeneratorConfig
from agentgym.models.architecture import TIED_HEAD, read_config
from agentgym.models.safetensors import read_shapes
from agentgym.types import SamplingParams

if TYPE_CHECKING:
    import vllm
    from vllm.engine.arg_utils import AsyncEngineArgs

WORKER_EXTENSION = "agentgym.generators.vllm.worker.WorkerExtension"
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
    """Raises UserError when the installed vLLM was built for another device than the config asks for."""
    from vllm.platforms import current_platform

    gpu = bool(current_platform.is_cuda())
    if config.device != "auto" and gpu != (config.device == "cuda"):
        raise UserError(
            f"generator.device is {config.device!r} but the installed vLLM computes on "
            f"{'cuda' if gpu else 'cpu'}; install the other build, or use generator.device=auto"
        )
    return gpu


def set_environment(config: GeneratorConfig) -> None:
    """What vLLM reads from the environment, in this process and the one it starts; it offers no other way.

    Call it before vllm is imported.
    """
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"  # a fork would copy locks that other threads hold
    os.environ["OMP_NUM_THREADS"] = str(config.threads)  # decoding on a CPU is many times slower without it
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # replicas would all sit on the same cores
    if importlib.util.find_spec("flashinfer") is None:  # vLLM imports it for its sampler without asking
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
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


def _arguments(
    kind: type[AsyncEngineArgs], config: GeneratorConfig, folder: Path, options: Mapping[str, Any]
) -> AsyncEngineArgs:
    ours: dict[str, Any] = {"enable_prefix_caching": True} | dict(options)
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


def sampling_params(sampling: SamplingParams) -> vllm.SamplingParams:
    """One final answer with the sampled tokens' log-probabilities; only our own stop tokens end it."""
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
    )
