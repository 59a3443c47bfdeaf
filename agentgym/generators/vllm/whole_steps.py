"""vLLM's worker where whole steps are CUDA graphs, also those that compute prompts beside sampled tokens.

vLLM 0.32 makes FlashAttention 3's schedule before each step, for that step's requests and its longest prompt. A
captured kernel reads it as if it was of the requests that it was captured with, so what such steps sampled on an H200
was not the model's. Here the kernel makes it, inside the graph, as it does with vLLM's batch-invariant mode.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.attention.backends.flash_attn import FlashAttentionMetadataBuilder

from agentgym.generators.vllm.worker import WorkerExtension as WorkerExtension


def schedule_in_the_kernel(builder: Any) -> None:
    """Changes a class of vLLM, for the objects that are made from now on."""
    vllms = builder.__init__

    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        vllms(self, *arguments, **options)
        self.aot_schedule = False

    builder.__init__ = __init__


schedule_in_the_kernel(FlashAttentionMetadataBuilder)  # in vLLM's own process, which imports this for the extension
