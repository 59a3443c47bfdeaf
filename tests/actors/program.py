"""An ordinary program that runs generators; the tests of its end start it and kill it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from scripted import Scripted

from agentgym.actors.runtime import Runtime
from agentgym.commands.stopping import Stopped, run_until_stopped
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.service import GeneratorService
from agentgym.types import GenerateRequest, SamplingParams
from agentgym.weights.shared_memory import SharedMemoryStore


async def main(ending: str, logs: Path) -> None:
    async with Runtime(log_dir=logs) as runtime:
        store = SharedMemoryStore("program")
        generators = GeneratorService(
            config=GeneratorConfig(engine=Scripted()), store=store, model_path="", runtime=runtime
        )
        try:
            await generators.start()
            request = GenerateRequest(prompt_ids=(1,), sampling=SamplingParams(max_tokens=1))
            await generators.generate(request)
            print("ready", store.folder, *generators.pids(), flush=True)
            if ending == "raise":
                raise RuntimeError("as asked")
            if ending == "wait":
                await asyncio.sleep(120)
        finally:
            if ending != "careless":
                await generators.close()
            await store.close()


try:
    run_until_stopped(main(sys.argv[1], Path(sys.argv[2])), say=lambda text: None)
except Stopped as stopped:
    sys.exit(stopped.exit_code)
