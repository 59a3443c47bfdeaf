"""A whole program of torchforge, in its form: only what it imports is ours. Its actors and loops are `forge_program`'s,
but one actor is the main program's own, which other processes import by its name.
"""

import asyncio
from dataclasses import dataclass

from forge_program import ComputeAdvantages, DatasetActor, ShortAnswer, collate, grpo, simple_grpo_loss

from agentgym.forge import (
    DictConfig,
    ForgeActor,
    Generator,
    Reduce,
    ReferenceModel,
    ReplayBuffer,
    TitanTrainer,
    Tracer,
    endpoint,
    get_or_create_metric_logger,
    get_param_prefix,
    init_provisioner,
    parse,
    record_metric,
    shutdown,
)
from agentgym.forge import torchstore as ts

Policy = Generator


@dataclass
class RewardActor(ForgeActor):
    reward_functions: list

    @endpoint
    async def evaluate_response(self, prompt: str, response: str, target: str) -> float:
        record_metric("reward/calls", 1, Reduce.SUM)
        return sum(one(prompt, response, target) for one in self.reward_functions)


async def main(cfg: DictConfig) -> None:
    provisioner = await init_provisioner()
    mlogger = await get_or_create_metric_logger(process_name="Controller")
    await mlogger.init_backends.call_one(cfg.get("metric_logging", {}))
    dataloader, policy, trainer, replay_buffer, compute_advantages, ref_model, reward_actor = await asyncio.gather(
        DatasetActor.options(**cfg.actors.dataset).as_actor(**cfg.dataset),
        Policy.options(**cfg.services.policy).as_service(**cfg.policy),
        TitanTrainer.options(**cfg.actors.trainer).as_actor(**cfg.trainer, loss=simple_grpo_loss),
        ReplayBuffer.options(**cfg.actors.dataset).as_actor(**cfg.replay_buffer, collate=collate),
        ComputeAdvantages.options(**cfg.actors.dataset).as_actor(),
        ReferenceModel.options(**cfg.services.ref_model).as_service(**cfg.ref_model),
        RewardActor.options(**cfg.services.reward_actor).as_service(reward_functions=[ShortAnswer()]),
    )
    trainer_hosts = provisioner.get_host_mesh(cfg.actors.trainer["mesh_name"])
    await ts.initialize(
        mesh=trainer_hosts.spawn_procs(per_host={"procs": cfg.actors.trainer["procs"]}), strategy=ts.LocalRankStrategy()
    )
    tracer = Tracer("main_perf/all")
    tracer.start()
    losses = await grpo(
        dataloader=dataloader,
        policy=policy,
        trainer=trainer,
        replay_buffer=replay_buffer,
        compute_advantages=compute_advantages,
        ref_model=ref_model,
        reward_actor=reward_actor,
        group_size=cfg.group_size,
        max_req_tokens=cfg.max_req_tokens,
        max_res_tokens=cfg.max_res_tokens,
        max_steps=cfg.trainer.training.steps or -1,
        flush=lambda step, metrics: None,
    )
    tracer.step("loops")
    tracer.stop()
    for key in await ts.keys(get_param_prefix(1)):
        await ts.delete(key)
    await mlogger.flush.call_one(len(losses))
    await shutdown()


if __name__ == "__main__":

    @parse
    def _main(cfg: DictConfig) -> None:
        asyncio.run(main(cfg))

    _main()
