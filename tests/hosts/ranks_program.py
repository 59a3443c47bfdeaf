"""Runs on a host: the losses of a trainer of two ranks on two hosts, and on one."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from tiny_model import draw_samples, write_model

from agentgym.actors.host_care import open_runtime
from agentgym.actors.hosts import HostsConfig
from agentgym.actors.launchers import AttachLauncher
from agentgym.rl.losses.grpo import Grpo
from agentgym.trainer.actor import TitanTrainer
from agentgym.trainer.client import TrainerClient
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.trainer.setup import TrainerSetup


async def main(folder: Path, machines: tuple[str, ...]) -> None:
    setup = TrainerSetup(
        model_path=str(write_model(folder / "policy")),
        trainer=TrainerConfig(procs=2, device="cpu", seq_len=64),
        optimizer=OptimizerConfig(lr=1e-2),
        loss=Grpo(),
        total_steps=10,
        folder=str(folder / "titan"),
    )
    found = {}
    launcher, places = AttachLauncher(machines=machines), HostsConfig(trainer=machines)
    async with open_runtime(launcher=launcher, places=places, log_dir=folder / "logs", patience_s=100.0) as runtime:
        for names in (machines, machines[:1]):
            runtime.hosts.config = HostsConfig(trainer=names)
            trainer = TrainerClient(setup, runtime=runtime)
            await trainer.start()
            assert trainer._group is not None
            where = [host.name for host in trainer._group.hosts]
            steps = [await trainer.call(TitanTrainer.train_step, draw_samples(4)) for _ in range(3)]
            found[",".join(where)] = [step["train/loss"] for step in steps] + [
                step["train/grad_norm"] for step in steps
            ]
            await trainer.close()
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), tuple(sys.argv[2:])))
