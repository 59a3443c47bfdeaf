"""What each finding about a run means, what to do about it, which fields of the recipe and which curves it is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """fields: of the recipe, by dotted key. metrics: the curves that show it."""

    meaning: str
    advice: str
    fields: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()


_SIGNAL = ("loop/skipped_groups", "loop/skipped_right", "loop/skipped_wrong", "rollout/success_mean")
_TIMES = ("time/step_s", "time/generate_s", "time/sandbox_s", "time/train_s")
_NO_SIGNAL = "All episodes of such a group earned the same, so nothing says which was better: it is thrown away."

REMEDIES: Mapping[str, Remedy] = {
    "ended": Remedy(
        meaning="The other findings are about the steps before.",
        advice="Fix the cause if it failed; agentgym train --resume RUN (or sft --resume RUN) continues it",
    ),
    "not_finite": Remedy(
        meaning="From there on the weights mean nothing.",
        advice="Lower optimizer.lr; resume from a checkpoint before that step.",
        fields=("optimizer.lr",),
        metrics=("train/loss", "train/grad_norm"),
    ),
    "rate_zero": Remedy(
        meaning="The weights never change.", advice="Set optimizer.lr.", fields=("optimizer.lr",), metrics=("train/lr",)
    ),
    "gradient_zero": Remedy(
        meaning="The weights never change.",
        advice="Look at the advantages of an episode: agentgym runs episodes RUN --show ID",
        fields=("advantage.name", "loss.name"),
        metrics=("train/grad_norm",),
    ),
    "gradient_spike": Remedy(
        meaning="One batch moves the weights as no other does.",
        advice="Lower optimizer.max_grad_norm or optimizer.lr; read the episodes of that step.",
        fields=("optimizer.max_grad_norm", "optimizer.lr"),
        metrics=("train/grad_norm",),
    ),
    "never_succeeded": Remedy(
        meaning="Without a success no reward says what to do more often. An environment reports it as `success` in "
        "`info`; one that never does so is judged by its reward.",
        advice="Choose easier tasks, or fine-tune on solved examples first: agentgym sft --env NAME --oracle 256",
        fields=("env.options", "model.path", "rewards"),
        metrics=("rollout/success_mean", "rollout/reward_mean"),
    ),
    "no_signal_wrong": Remedy(
        meaning=_NO_SIGNAL,
        advice="The tasks are too hard for this policy: choose easier ones, raise loop.group_size, reward partial "
        "progress, or fine-tune on solved examples first (agentgym sft --oracle).",
        fields=("env.options", "loop.group_size", "rewards"),
        metrics=_SIGNAL,
    ),
    "no_signal_right": Remedy(
        meaning=_NO_SIGNAL,
        advice="Most tasks are solved: choose harder ones, or end the run; task_sampler.name: learnable looks for "
        "those that are not.",
        fields=("env.options", "task_sampler.name"),
        metrics=_SIGNAL,
    ),
    "no_signal": Remedy(
        meaning=_NO_SIGNAL,
        advice="Choose tasks between too easy and too hard (task_sampler.name: learnable), raise loop.group_size or "
        "rollout.temperature, or add a reward that tells the episodes apart.",
        fields=("env.options", "task_sampler.name", "loop.group_size", "rollout.temperature", "rewards"),
        metrics=_SIGNAL,
    ),
    "rewards_do_not_pay": Remedy(
        meaning="The rewards pay for something that is not success, or for nothing, and the policy follows them.",
        advice="Compare both on saved episodes: agentgym runs rescore RUN --reward success; then agentgym envs check",
        fields=("rewards",),
        metrics=("rollout/success_mean", "rollout/reward_mean"),
    ),
    "entropy_collapse": Remedy(
        meaning="It says nearly the same in every episode of a group, so there is nothing left to compare.",
        advice="Lower optimizer.lr, raise loss.clip_high or rollout.temperature, or set loss.entropy_coef or "
        "loss.kl_coef; continue from an earlier checkpoint.",
        fields=("optimizer.lr", "loss.clip_high", "loss.entropy_coef", "loss.kl_coef", "rollout.temperature"),
        metrics=("train/entropy",),
    ),
    "entropy_explosion": Remedy(
        meaning="The policy loses what it knew and its answers become noise. Rewards that do not depend on the "
        "answer do this, and steps that are too large for the age of their samples.",
        advice="Read some episodes; check the rewards; lower optimizer.lr or loop.max_staleness.",
        fields=("rewards", "optimizer.lr", "loop.max_staleness", "loss.name"),
        metrics=("train/entropy",),
    ),
    "truncation": Remedy(
        meaning="They are scored without their end, and teach to be short rather than right.",
        advice="Raise the limits (generator.max_model_len and trainer.seq_len with them), or reward short answers.",
        fields=("rollout.max_turn_tokens", "rollout.max_episode_tokens", "rollout.cut_turns"),
        metrics=("rollout/truncated_share", "rollout/completion_tokens_mean"),
    ),
    "cut_by_time": Remedy(
        meaning="The machine was too slow for them. They are scored without their end, and teach to be short.",
        advice="Raise rollout.generate_timeout_s and rollout.episode_time_s, add generator replicas, or play fewer "
        "episodes at a time.",
        fields=("rollout.generate_timeout_s", "rollout.episode_time_s", "generator.replicas", "loop.group_size"),
        metrics=("rollout/time_cut_share", "generator/tokens_per_s"),
    ),
    "evaluation_cut": Remedy(
        meaning="Such an episode measures the machine and not the policy, so it is not counted; what is left favours "
        "short answers.",
        advice="Raise that limit, or make the engine faster (generator.replicas, another engine), and measure again: "
        "agentgym eval RUN --rollout.generate_timeout_s 240",
        fields=("rollout.generate_timeout_s", "rollout.episode_time_s", "generator.replicas", "eval.scores_cuts"),
        metrics=("eval/success",),
    ),
    "length_explosion": Remedy(
        meaning="Longer is fine where it succeeds more often; where it does not, the loss or a reward pays for length.",
        advice="Compare reward with length in the table of episodes; use loss.aggregation: token_mean or "
        "fixed_horizon, advantage.name: soft_overlong, or a small negative weight for length.",
        fields=("loss.aggregation", "advantage.name", "rewards", "rollout.max_turn_tokens"),
        metrics=("rollout/completion_tokens_mean", "rollout/truncated_share"),
    ),
    "length_collapse": Remedy(
        meaning="The policy answers ever shorter; it may have given up the task.",
        advice="Read some episodes; look for a reward that a short wrong answer earns.",
        fields=("rewards",),
        metrics=("rollout/completion_tokens_mean",),
    ),
    "invalid": Remedy(
        meaning="The policy does not keep the form that the environment asks for.",
        advice="Say the form in the prompt, or fine-tune on some examples first (agentgym sft).",
        fields=("env.options", "model.tool_instruction"),
        metrics=("rollout/invalid_share", "rollout/tool_malformed"),
    ),
    "reward_missing": Remedy(
        meaning="An episode without a score of weight above 0 is left out of training.",
        advice="Find why on saved episodes: agentgym runs rescore RUN --reward NAME",
        fields=("rewards",),
        metrics=("rollout/infra_errors",),
    ),
    "mismatch": Remedy(
        meaning="Both hold the same weights then, so this is arithmetic, not training: all ratios are off by as much.",
        advice="Give generator.dtype and trainer.dtype the same type, or choose another engine.",
        fields=("generator.dtype", "trainer.dtype", "generator.engine.name"),
        metrics=("sync/mismatch_max", "sync/mismatch_mean"),
    ),
    "engine_mismatch": Remedy(
        meaning="The engine computes another policy than the trainer from the same weights: all ratios are off by it.",
        advice="Give generator.dtype and trainer.dtype the same type, leave quantization off, or choose another "
        "engine; until then set trainer.mismatch.engine.correct.",
        fields=("generator.dtype", "trainer.dtype", "generator.engine.name", "trainer.mismatch.engine.correct"),
        metrics=("mismatch/engine_kl", "mismatch/engine_max", "sync/mismatch_max"),
    ),
    "drift": Remedy(
        meaning="Such data points the wrong way where the ratio is clipped or missing.",
        advice="Lower loop.max_staleness or optimizer.lr; use a loss with the sampler's log-probabilities, as grpo.",
        fields=("loop.max_staleness", "optimizer.lr", "loss.name"),
        metrics=("mismatch/staleness_kl", "train/mismatch_kl", "train/ratio_mean"),
    ),
    "clipped": Remedy(
        meaning="Their gradient is 0: the steps are larger than the clip allows, or the data is too old.",
        advice="Lower optimizer.lr, trainer.epochs or loop.max_staleness. Where staleness is the cause, loss.name: "
        "decoupled bounds the update alone, and cispo stops no gradient.",
        fields=("optimizer.lr", "trainer.epochs", "loop.max_staleness", "loss.clip_high", "loss.name"),
        metrics=("train/clip_share",),
    ),
    "correction_cut": Remedy(
        meaning="These samples hardly count, or count wrongly: much of what is played is lost.",
        advice="Lower loop.max_staleness; give generator.dtype and trainer.dtype the same type; weights of tokens "
        "(loss.correction: token) are bounded later than those of whole sequences; or raise loss.correction_cap.",
        fields=("loop.max_staleness", "generator.dtype", "trainer.dtype", "loss.correction", "loss.correction_cap"),
        metrics=("train/correction_cut_share", "train/correction_mean", "train/mismatch_kl"),
    ),
    "staleness": Remedy(
        meaning="Old samples are another policy's: with a correction learning slows down, without one it reverses.",
        advice="Lower loop.max_staleness, or add generator replicas; use the loss grpo.",
        fields=("loop.max_staleness", "generator.replicas", "loss.name"),
        metrics=("loop/staleness_mean", "loop/staleness_max"),
    ),
    "kl_growth": Remedy(
        meaning="The policy leaves what the model knew before; language and formats suffer first.",
        advice="Raise loss.kl_coef or lower optimizer.lr. Where the policy is better for it, let the reference follow: "
        "trainer.reference_every.",
        fields=("loss.kl_coef", "optimizer.lr", "trainer.reference_every"),
        metrics=("train/kl_ref",),
    ),
    "restarts": Remedy(
        meaning="It came back with the weights that it had: its last checkpoint, and the batches since, trained again. "
        "That time is lost, nothing else.",
        advice="Why it was lost is in events.log, and what it printed last in logs/. SIGKILL is often the kernel, "
        "out of memory: lower trainer.rows_per_microbatch. More checkpoints make a return shorter.",
        fields=("trainer.rows_per_microbatch", "loop.checkpoint_every", "trainer.max_restarts"),
        metrics=("trainer/restarts_total", "trainer/down_s_total"),
    ),
    "infra_errors": Remedy(
        meaning="They are left out. If they are the hard or the long ones, what is trained on is not what was asked.",
        advice="See their causes (agentgym runs episodes RUN --outcome infra_error), then the sandbox or the limits.",
        fields=("rollout.env_timeout_s", "rollout.generate_timeout_s", "sandbox.name"),
        metrics=("rollout/infra_errors", "rollout/retries"),
    ),
    "idle": Remedy(
        meaning="The run waits for code in its own process: the environment, rewards, or a disk.",
        advice="Measure the environment: agentgym envs check NAME",
        metrics=("time/compute_share", *_TIMES),
    ),
    "waits_for_generation": Remedy(
        meaning="The trainer starves: generation sets the pace.",
        advice="Add generator.replicas, raise generator.max_batch, or loop.max_staleness if it is 0.",
        fields=("generator.replicas", "generator.max_batch", "loop.max_staleness"),
        metrics=_TIMES,
    ),
    "waits_for_sandbox": Remedy(
        meaning="Trainer and generators starve: calls into the sandbox set the pace.",
        advice="Give it more room in sandbox.options, choose a quicker one, or raise loop.max_staleness if it is 0.",
        fields=("sandbox.name", "sandbox.options", "loop.max_staleness"),
        metrics=_TIMES,
    ),
    "waits_for_trainer": Remedy(
        meaning="The generators starve: the trainer sets the pace.",
        advice="Give the trainer more (trainer.procs, trainer.rows_per_microbatch, trainer.compile), or use fewer "
        "generator.replicas.",
        fields=("trainer.procs", "trainer.rows_per_microbatch", "generator.replicas"),
        metrics=_TIMES,
    ),
    "past_best": Remedy(
        meaning="The run has passed its best policy; the interval is a little too narrow, since the best was chosen.",
        advice="Take the checkpoint nearest to the best step, or continue from it with a lower optimizer.lr.",
        fields=("optimizer.lr", "loop.checkpoint_every"),
        metrics=("eval/success",),
    ),
}
"""By the finding's name."""
