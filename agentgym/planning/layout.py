"""What no machine can do, whatever its memory: splits that a model does not have, lengths beyond its positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agentgym.errors import UserError
from agentgym.families.architecture import Architecture
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.select import VllmEngineConfig
from agentgym.trainer.config import TrainerConfig


def refuse_impossible(
    model: Architecture | None,
    trainer: TrainerConfig | None,
    generator: GeneratorConfig | None,
    *,
    episode_tokens: int = 0,
) -> None:
    """Raises UserError with a sentence for each, which says what would be possible. model: None is not known.

    episode_tokens: of the longest episode that is played and trained.
    """
    found: list[str] = []
    if trainer is not None:
        found += _of_trainer(model, trainer)
    if generator is not None:
        found += _of_generator(model, generator)
    if trainer is not None and generator is not None:
        found += too_long(episode_tokens, trainer, generator)
    if found:
        raise UserError("\n".join(found))


def too_long(episode_tokens: int, trainer: TrainerConfig, generator: GeneratorConfig) -> Iterator[str]:
    """An episode must fit the generator's context and the trainer's rows."""
    for name, limit in (("generator.max_model_len", generator.max_model_len), ("trainer.seq_len", trainer.seq_len)):
        if episode_tokens > limit:
            yield (
                f"rollout.max_episode_tokens is {episode_tokens} but {name} is only {limit}: "
                "an episode would not fit; lower the first or raise the second"
            )


def _of_trainer(model: Architecture | None, trainer: TrainerConfig) -> Iterator[str]:
    ranks, sharing = trainer.data_ranks, f"trainer.tensor_parallel {trainer.tensor_parallel}"
    if trainer.context_parallel > 1:
        sharing += f" and trainer.context_parallel {trainer.context_parallel}"
    if trainer.data_parallel_shard not in (-1, ranks):
        yield (
            f"trainer.data_parallel_shard is {trainer.data_parallel_shard}, and trainer.procs {trainer.procs} by "
            f"{sharing} make {ranks} rank(s) to shard over; give {ranks}, or "
            "-1 for as many as there are"
        )
    if twice := _twice(trainer.gpus):
        yield (
            f"trainer.gpus {list(trainer.gpus)} names GPU {twice} more than once, and each of trainer.procs "
            f"{trainer.procs} takes one of its own; name {trainer.procs} different ones, or leave trainer.gpus out to "
            "have them planned"
        )
    if model is None:
        return
    yield from _beyond(model, "trainer.seq_len", trainer.seq_len)
    if not _splits_trainer(model, trainer.tensor_parallel):
        yield _unsplit(model, "trainer.tensor_parallel", trainer.tensor_parallel, _splits_trainer)
    elif trainer.seq_len % trainer.tensor_parallel:
        yield (
            f"trainer.seq_len {trainer.seq_len} is not a multiple of trainer.tensor_parallel "
            f"{trainer.tensor_parallel}, whose ranks share each row's tokens; give "
            f"{trainer.seq_len - trainer.seq_len % trainer.tensor_parallel}"
        )


def _of_generator(model: Architecture | None, generator: GeneratorConfig) -> Iterator[str]:
    engine, each = generator.engine, generator.engine.gpus_per_replica
    for number in range(len(generator.gpus) // each):
        of_replica = generator.gpus[number * each : (number + 1) * each]
        if twice := _twice(of_replica):
            yield (
                f"generator.gpus {list(generator.gpus)} gives replica {number} GPU {twice} more than once, and its "
                f"model is split over {each}; name {each} different ones for each replica, or leave generator.gpus "
                "out to have them planned"
            )
    if model is None:
        return
    if isinstance(engine, VllmEngineConfig) and not _splits_vllm(model, engine.tensor_parallel):
        yield _unsplit(model, "generator.engine.tensor_parallel", engine.tensor_parallel, _splits_vllm)
    if not (isinstance(engine, VllmEngineConfig) and "hf_overrides" in engine.options):  # they may stretch positions
        yield from _beyond(model, "generator.max_model_len", generator.max_model_len)


def _splits_trainer(model: Architecture, ranks: int) -> bool:
    """Whole heads, and even parts of the feed-forward layers and of the vocabulary, for each rank."""
    parts = (model.num_heads, model.num_kv_heads, model.ffn_dim, model.vocab_size)
    return not any(size % ranks for size in parts)


def _splits_vllm(model: Architecture, ranks: int) -> bool:
    """vLLM repeats key-value heads where there are fewer than ranks, and pads the vocabulary."""
    heads = model.num_kv_heads
    return not (model.num_heads % ranks or model.ffn_dim % ranks or (heads % ranks and ranks % heads))


def _unsplit(model: Architecture, field: str, ranks: int, splits: Callable[[Architecture, int], bool]) -> str:
    possible = [str(count) for count in range(1, model.num_heads + 1) if splits(model, count)]
    return (
        f"{field} is {ranks}, over which the model's {model.num_heads} attention heads, {model.num_kv_heads} key-value "
        f"heads and {model.ffn_dim} feed-forward columns can't be split evenly; give {_either(possible)}"
    )


def _beyond(model: Architecture, field: str, length: int) -> Iterator[str]:
    if length > model.max_positions:
        yield (
            f"{field} is {length}, and the model has {model.max_positions} positions (max_position_embeddings of its "
            f"config.json); give at most {model.max_positions}"
        )


def _twice(gpus: tuple[int, ...]) -> str:
    return ", ".join(str(gpu) for gpu in sorted(set(gpus)) if gpus.count(gpu) > 1)


def _either(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
