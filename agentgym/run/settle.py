"""Turns a recipe and this machine into one finished value, once: nothing after this changes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from agentgym.errors import UserError
from agentgym.families.architecture import Architecture
from agentgym.families.quantized import quantized_shapes
from agentgym.families.registry import known_router, read_architecture, read_dense
from agentgym.generators.select import NativeEngineConfig, at_once, settle_engine, why_not_native
from agentgym.hooks import PluginRegistry
from agentgym.models.resolve import resolve_model
from agentgym.planning.machine import Machine, this_machine
from agentgym.planning.placement import assign
from agentgym.recipe import Recipe
from agentgym.run.placement import settle_generators, settle_placement, wanted_of
from agentgym.trainer.checkpoint import is_of_quantized
from agentgym.trainer.choice import choose_engine

TOKENIZER = "tokenizer.json"
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A run's recipe with its engine, devices and GPUs chosen, and the models that it names as folders.

    model_path: None where the policy is behind a server. teacher: of the advantage, if it has one.
    """

    recipe: Recipe
    registry: PluginRegistry
    model_path: Path | None
    teacher: Path | None = None

    @property
    def model(self) -> Path:
        assert self.model_path is not None, "the policy is behind a server"
        return self.model_path

    @property
    def keeps_logprobs(self) -> bool:
        """Whether saved episodes have the trainer's log-probabilities."""
        return self.recipe.logging.save_episodes and self.recipe.logging.trainer_logprobs


def settle(recipe: Recipe, scratch: Path, note: Note, registry: PluginRegistry | None = None) -> Settled:
    """Settles a recipe for training. scratch: gets the weights that a recipe draws. note: gets what is worth knowing.

    Raises UserError for what the user must fix, with the numbers and what would do.
    """
    if recipe.eval.shard:
        raise UserError("eval.shard is for `agentgym eval`: a run measures itself on all tasks; leave it out")
    model_path = _model_of(recipe, scratch)
    trainer, architecture = choose_engine(
        recipe.trainer, model_path, recipe.model.quantize
    )  # raises for what can't be trained
    recipe = replace(recipe, trainer=trainer)
    settled = recipe
    if recipe.sft is None:  # else generators play before and after it, and are settled for each evaluation
        check_sampling(recipe)
        engine = settle_engine(recipe.generator, str(model_path), note)
        settled = settle_workers(settle_deterministic(replace(recipe, generator=engine)))
    settled = settle_routes(settled, architecture)
    return Settled(
        recipe=settle_placement(settled, architecture, note),
        registry=registry or _registry_of(recipe),
        model_path=model_path,
        teacher=find_teacher(recipe, model_path, scratch),
    )


def settle_sampling(
    recipe: Recipe, scratch: Path, note: Note, registry: PluginRegistry | None = None, *, trained: bool = True
) -> Settled:
    """Settles generators alone, as an evaluation needs them: any model that an engine can load.

    trained: whether a checkpoint of a quantized base has its policy's weights; else it is a base to be quantized again.
    """
    model_path = _model_of(recipe, scratch)
    if recipe.model.quantize != "none":
        quantized_shapes(read_architecture(model_path), recipe.model.quantize)  # raises for what can't be
        if trained and is_of_quantized(model_path):
            recipe = replace(recipe, model=replace(recipe.model, quantize="none"))
    engine = settle_engine(recipe.generator, str(model_path), note)
    architecture = None if why_not_native(str(model_path)) else read_dense(model_path)
    settled = settle_generators(replace(recipe, generator=engine), architecture)
    return Settled(recipe=settled, registry=registry or _registry_of(recipe), model_path=model_path)


def settle_alone(recipe: Recipe, scratch: Path, note: Note, registry: PluginRegistry) -> Settled:
    """Settles a recipe for measuring: one replica, and as few trainer processes as the model needs."""
    check_sampling(recipe)
    model_path = _model_of(recipe, scratch)
    found = settle_engine(recipe.generator, str(model_path), note)
    # at once: what joining a batch costs is measured, not what waiting for each other saves of it
    one = replace(found, engine=at_once(found.engine), replicas=1, gpus=())
    trainer, architecture = choose_engine(recipe.trainer, model_path, recipe.model.quantize)
    recipe = replace(recipe, trainer=trainer)
    elsewhere = recipe.launcher.transport()  # on hosts of which no memory is known here
    alone = with_fewest_trainers(replace(recipe, generator=one), architecture, None if elsewhere else this_machine())
    settled = settle_placement(alone, architecture, lambda note: None)
    return Settled(recipe=settled, registry=registry, model_path=model_path)


def settle_served(recipe: Recipe, registry: PluginRegistry | None = None) -> Settled:
    """Settles a recipe whose policy a server holds."""
    return Settled(recipe=recipe, registry=registry or _registry_of(recipe), model_path=None)


def settled_elsewhere(recipe: Recipe, model_path: Path) -> Settled:
    """What the controller has settled, in another process of its run."""
    return Settled(recipe=recipe, registry=_registry_of(recipe), model_path=model_path)


def settle_deterministic(recipe: Recipe) -> Recipe:
    """Applies what loop.deterministic decides. Raises UserError for what can't be a function of the recipe."""
    loop, generator = recipe.loop, recipe.generator
    if not loop.deterministic:
        return recipe
    if not isinstance(generator.engine, NativeEngineConfig):
        raise UserError(
            "loop.deterministic needs generator.engine=native: in the others a sequence's numbers depend on the "
            "sequences beside it"
        )
    if generator.device == "cuda" or recipe.trainer.device == "cuda":
        raise UserError("loop.deterministic needs generator.device=cpu and trainer.device=cpu: GPUs add in any order")
    return replace(
        recipe,
        generator=replace(generator, batch_invariant=True, device="cpu"),
        trainer=replace(recipe.trainer, device="cpu"),
        weights=replace(recipe.weights, keep=max(recipe.weights.keep, loop.num_slots + 2)),  # a group waits no longer
    )


def settle_routes(recipe: Recipe, architecture: Architecture) -> Recipe:
    """The generators record what trainer.router_replay replays. Raises UserError where there is nothing to replay."""
    if recipe.trainer.router_replay == "off":
        return recipe
    known_router(architecture)
    if recipe.sft is not None:
        raise UserError(
            "trainer.router_replay is rollout, and fine-tuning has no rollouts: set trainer.router_replay to off"
        )
    return replace(recipe, generator=replace(recipe.generator, routes=True))


def settle_workers(recipe: Recipe) -> Recipe:
    """Shares what may wait at a replica among the processes that call it: the rollout workers and the controller.

    Raises UserError for what rollout workers can't do.
    """
    generator, workers = recipe.generator, recipe.rollout.workers
    if not workers:
        return recipe
    if generator.fewest_replicas < generator.most_replicas:
        raise UserError(
            f"rollout.workers is {workers}, and the generators grow from {generator.fewest_replicas} to "
            f"{generator.most_replicas} replicas by the requests that the controller sees, which are not those of the "
            "workers; set generator.replicas alone, or rollout.workers=0"
        )
    each = generator.max_waiting // (workers + 1)
    if not each:
        raise UserError(
            f"generator.max_waiting is {generator.max_waiting}, which {workers} rollout workers and the controller "
            f"share; give at least {workers + 1}"
        )
    return replace(recipe, generator=replace(generator, max_waiting=each))


def with_fewest_trainers(recipe: Recipe, model: Architecture, machine: Machine | None) -> Recipe:
    """The recipe with the fewest trainer processes that fit. machine: None is one where any number fits."""
    trainer = recipe.trainer
    counts = [n for n in doubled(trainer.ranks_of_a_row, trainer.procs) if not trainer.procs % n]
    for procs in [*counts, trainer.procs]:
        found = replace(recipe, trainer=replace(trainer, procs=procs, data_parallel_shard=-1, gpus=()))
        if machine is None or not trainer.check_memory or assign(wanted_of(found, model), machine).fits:
            break
    return found


def doubled(first: int, last: int) -> Iterator[int]:
    while first <= last:
        yield first
        first *= 2


def at_checkpoint(recipe: Recipe, checkpoint: Path) -> Recipe:
    """The recipe of a run's own evaluation: its model is one of its checkpoints."""
    return replace(recipe, model=replace(recipe.model, path=str(checkpoint), random_weights=False))


def check_sampling(recipe: Recipe) -> None:
    """The trainer computes the softmax at a temperature, not a truncated distribution."""
    rollout = recipe.rollout
    if rollout.top_p < 1 or rollout.top_k > 0:
        raise UserError(
            f"training with rollout.top_p = {rollout.top_p} and rollout.top_k = {rollout.top_k} would compare "
            "log-probabilities of two different distributions; train with top_p 1 and top_k 0, and "
            "truncate only in `agentgym eval`"
        )


def find_teacher(recipe: Recipe, model_path: Path, scratch: Path) -> Path | None:
    """The folder of the advantage's teacher; None where it has none.

    Raises UserError for a model that is not there, can't be run by the trainer, is too short, or has other tokens.
    """
    path = recipe.advantage.teacher_path
    if path is None:
        return None
    if not path:
        raise UserError("advantage.teacher is empty; name the model to learn from, as model.path names one")
    teacher = resolve_model(path, scratch)
    positions = choose_engine(recipe.trainer, teacher)[1].max_positions
    if positions < recipe.trainer.seq_len:
        raise UserError(
            f"the teacher {teacher} has {positions} positions, but trainer.seq_len is {recipe.trainer.seq_len}; "
            "lower it, or take another teacher"
        )
    mine, other = _tokens(model_path), _tokens(teacher)
    differing = sorted(token for token in mine.keys() | other.keys() if mine.get(token) != other.get(token))
    if differing:
        raise UserError(
            f"the teacher {teacher} has other tokens than {model_path}: {len(differing)} differ, for example "
            f"{differing[0]!r}. It judges the policy's tokens, so take a model with the same tokenizer"
        )
    return teacher


def _model_of(recipe: Recipe, scratch: Path) -> Path:
    return resolve_model(recipe.model.path, scratch, random_weights=recipe.model.random_weights)


def _registry_of(recipe: Recipe) -> PluginRegistry:
    return PluginRegistry.discover(recipe.plugins.disabled)


def _tokens(folder: Path) -> dict[str, int]:
    """Every token with its number."""
    file = folder / TOKENIZER
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        vocab = content["model"]["vocab"]
        if isinstance(vocab, list):  # a unigram model: pieces with scores
            vocab = {piece: number for number, (piece, _) in enumerate(vocab)}
        return {**vocab, **{token["content"]: token["id"] for token in content.get("added_tokens", [])}}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{file} can't be compared with the teacher's: {error!r}. Distillation needs both tokenizers as "
            f"{TOKENIZER}, to see that they are the same"
        ) from error
