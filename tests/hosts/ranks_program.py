"""Runs on a host: what a trainer of two ranks finds, one on each of two hosts."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tiny_model import draw_samples, write_model

from agentgym.actors.host_care import open_runtime
from agentgym.actors.hosts import HostsConfig
from agentgym.actors.launchers import AttachLauncher
from agentgym.rl.losses.grpo import Grpo
from agentgym.trainer.actor import TrainerActor
from agentgym.trainer.client import TrainerClient
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.trainer.setup import TrainerSetup

BATCHES = [draw_samples(4)] * 3


def make_setup(folder: Path, procs: int) -> TrainerSetup:
    return TrainerSetup(
        model_path=str(write_model(folder / "policy")),
        trainer=TrainerConfig(procs=procs, device="cpu", seq_len=64),
        optimizer=OptimizerConfig(lr=1e-2),
        loss=Grpo(),
        total_steps=10,
        folder=str(folder / f"titan-{procs}"),
    )


def compared(steps: Sequence[Mapping[str, float]]) -> list[float]:
    return [step[key] for key in ("train/loss", "train/grad_norm") for step in steps]


async def main(folder: Path, machines: tuple[str, ...]) -> None:
    launcher, hosts_config = AttachLauncher(machines=machines), HostsConfig(trainer=machines)
    async with open_runtime(
        launcher=launcher, hosts_config=hosts_config, log_dir=folder / "logs", patience_s=100.0
    ) as runtime:
        trainer = TrainerClient(make_setup(folder, 2), runtime=runtime)
        await trainer.start()
        assert trainer._group is not None
        where = [host.name for host in trainer._group.hosts]
        gpus = {host.name: host.gpus for host in runtime.hosts.all}
        steps = [await trainer.call(TrainerActor.train_step, samples) for samples in BATCHES]
        await trainer.close()
    (folder / "found.json").write_text(json.dumps({"hosts": where, "gpus": gpus, "figures": compared(steps)}))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), tuple(sys.argv[2:])))
