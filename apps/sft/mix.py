"""What the tiny policy is shown: demonstrations of several environments, mixed by share, in numbered chunks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from agentgym.errors import UserError
from agentgym.rl.demonstrations import Demonstration
from agentgym.rollout.episode import derive_seed
from agentgym.types import Message
from apps.sft.demonstrations import DemonstrationConfig, demonstrations
from apps.sft.instruction_demonstrations import InstructionDemonstrationConfig, instruction_demonstrations
from apps.sft.math_demonstrations import MathDemonstrationConfig, math_demonstrations
from apps.sft.tool_demonstrations import ToolDemonstrationConfig
from apps.sft.tool_demonstrations import demonstrations as tool_demonstrations

FAMILIES = {
    "code": demonstrations,
    "math": math_demonstrations,
    "tools": tool_demonstrations,
    "instructions": instruction_demonstrations,
}
"""An endless iterator of conversations for a config, which has a seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixConfig:
    """shares: of the conversations that are of each family; 0 or absent leaves one out. The rest: how each is made."""

    shares: Mapping[str, float] = field(
        default_factory=lambda: {"code": 1.0, "math": 1.0, "tools": 1.0, "instructions": 0.7}
    )
    code: DemonstrationConfig = field(default_factory=DemonstrationConfig)
    math: MathDemonstrationConfig = field(default_factory=MathDemonstrationConfig)
    tools: ToolDemonstrationConfig = field(default_factory=ToolDemonstrationConfig)
    instructions: InstructionDemonstrationConfig = field(default_factory=InstructionDemonstrationConfig)

    def __post_init__(self) -> None:
        unknown = set(self.shares) - set(FAMILIES)
        if unknown or min(self.shares.values(), default=0) < 0 or not sum(self.shares.values()):
            raise ValueError(f"mix.shares is {dict(self.shares)}; give a share above 0 to some of {list(FAMILIES)}")


def mixed(config: MixConfig, seed: int, chunk: int) -> Iterator[Demonstration]:
    """Endless; other chunks are of other tasks. The same arguments give the same demonstrations."""
    shares = {name: share for name, share in config.shares.items() if share}
    streams = {name: _family(config, name, derive_seed(seed, name, chunk)) for name in shares}
    rng = random.Random(f"mix/{seed}/{chunk}")
    while True:
        yield next(streams[rng.choices(list(shares), list(shares.values()))[0]])


def _family(config: MixConfig, name: str, seed: int) -> Iterator[Demonstration]:
    seeded = replace(getattr(config, name), seed=seed)
    for number, made in enumerate(FAMILIES[name](seeded)):
        yield made if isinstance(made, Demonstration) else _plain(made, f"{name}/{seed}/{number}")


def _plain(messages: list[Message], name: str) -> Demonstration:
    if not messages:
        raise UserError(f"{name} is an empty conversation")
    return Demonstration(name=name, messages=tuple(messages))
