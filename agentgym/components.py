"""Components: the parts of a run that a recipe chooses by name or by import path, each with its own settings.

A component's class is a frozen dataclass that inherits the base class of its kind; its fields are its settings. So
`loss: {name: grpo, clip_low: 0.1}` makes `Grpo(clip_low=0.1)`, and `loss: {name: my_package.losses:MyLoss}` makes a
`MyLoss`. Ours are chosen in the same way as a plugin's: by the import paths below, which hooks return too.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from agentgym.errors import UserError, nearest
from agentgym.import_path import import_object, public_names

ComponentKind: TypeAlias = Literal[
    "losses", "advantages", "task_samplers", "generator_engines", "weight_stores"
]
Target: TypeAlias = str | type
"""A component's class, or its import path: then it is imported when a recipe chooses it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seam:
    """One kind of component. base: import path of its base class. builtin: ours, by name."""

    noun: str
    base: str
    builtin: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Marks a field of a config dataclass that holds a component. default: a name of ours."""

    kind: ComponentKind
    default: str


SEAMS: Mapping[ComponentKind, Seam] = {
    "losses": Seam(
        noun="loss",
        base="agentgym.rl.losses:Loss",
        builtin={
            "grpo": "agentgym.rl.losses.grpo:Grpo",
            "reinforce": "agentgym.rl.losses.reinforce:Reinforce",
            "cross_entropy": "agentgym.rl.losses.cross_entropy:CrossEntropy",
        },
    ),
    "advantages": Seam(
        noun="advantage",
        base="agentgym.rl.advantages:Advantage",
        builtin={
            "std_normalized": "agentgym.rl.advantages:StdNormalized",
            "mean_only": "agentgym.rl.advantages:MeanOnly",
            "rloo": "agentgym.rl.advantages:Rloo",
        },
    ),
    "task_samplers": Seam(
        noun="task sampler",
        base="agentgym.rollout.tasks:TaskSampler",
        builtin={
            "shuffled": "agentgym.rollout.tasks:Shuffled",
            "sequential": "agentgym.rollout.tasks:Sequential",
        },
    ),
    "generator_engines": Seam(
        noun="generator engine",
        base="agentgym.generators.config:EngineConfig",
        builtin={
            "auto": "agentgym.generators.select:AutoEngine",
            "native": "agentgym.generators.select:NativeEngineConfig",
            "vllm": "agentgym.generators.select:VllmEngineConfig",
        },
    ),
    "weight_stores": Seam(
        noun="weight store",
        base="agentgym.weights.config:StoreConfig",
        builtin={
            "shared_memory": "agentgym.weights.select:SharedMemoryConfig",
            "torchstore": "agentgym.weights.select:TorchStoreConfig",
        },
    ),
}


def component(kind: ComponentKind, default: str) -> Any:
    """A dataclass field that holds a component; without a value it is the one of ours of that name."""
    return dataclasses.field(
        default_factory=functools.partial(_default, kind, default),
        metadata={"component": Choice(kind=kind, default=default)},
    )


def choice_of(field: dataclasses.Field[Any]) -> Choice | None:
    """How the field's component is chosen; None for a field that holds no component."""
    found: Choice | None = field.metadata.get("component")
    return found


def find(kind: ComponentKind, name: str) -> type:
    """The class of one of ours by name, or of any by import path. Raises UserError for everything else."""
    seam = SEAMS[kind]
    if ":" in name:
        return load(kind, name)
    if name not in seam.builtin:
        raise UserError(
            f"no {seam.noun} {name!r}.{nearest(name, seam.builtin)} Or give an import path, package.module:Name."
        )
    return load(kind, seam.builtin[name])


def load(kind: ComponentKind, target: Target) -> type:
    """Import a component's class and check it. Raises UserError for anything that can't be one."""
    seam = SEAMS[kind]
    base = import_object(seam.base)
    assert isinstance(base, type)

    def fits(value: object) -> bool:
        return isinstance(value, type) and issubclass(value, base) and value is not base

    found = import_object(target, fits) if isinstance(target, str) else target
    shown = repr(target) if isinstance(target, str) else repr(import_path_of(target))
    if not isinstance(found, type) or not fits(found):
        raise UserError(
            f"{shown} is {_described(found)}, not a {seam.noun}: that is a frozen dataclass that inherits "
            f"{seam.base.replace(':', '.')}.{_alternatives(target, fits)}"
        )
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        raise UserError(f"{shown} does not define {', '.join(missing)}, as a {seam.noun} must")
    _check_settings(found, shown, seam.noun)
    return found


def name_of(kind: ComponentKind, value: object) -> str:
    """By which name a recipe chooses this component: ours by name, all others by import path."""
    path = import_path_of(type(value))
    return next((name for name, own in SEAMS[kind].builtin.items() if own == path), path)


def import_path_of(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _default(kind: ComponentKind, name: str) -> object:
    made: object = find(kind, name)()
    return made


def _check_settings(cls: type, shown: str, noun: str) -> None:
    """A component's fields are its settings, so it must be a dataclass, and frozen."""
    parameters = vars(cls).get("__dataclass_params__")
    if parameters is None or not parameters.frozen:
        problem = "is not a dataclass" if parameters is None else "is a dataclass that can be changed"
        raise UserError(
            f"{shown} {problem}: a {noun}'s fields are its settings; write "
            f"@dataclass(frozen=True, kw_only=True) above `class {cls.__name__}`"
        )
    if "name" in (field.name for field in dataclasses.fields(cls)):
        raise UserError(f"{shown} has a field `name`, which is what recipes choose it by; rename the field")
    try:
        typing.get_type_hints(cls)
    except Exception as error:  # a third party's code
        raise UserError(
            f"the types of the fields of {shown} can't be evaluated ({type(error).__name__}: {error}); "
            "import what they name at the top of the module, outside `if TYPE_CHECKING`"
        ) from error


def _described(value: object) -> str:
    if isinstance(value, type):
        return "another kind of class"
    kind = type(value).__name__
    return f"a {kind}" if inspect.isroutine(value) or inspect.ismodule(value) else f"{value!r:.60} ({kind})"


def _alternatives(target: Target, fits: typing.Callable[[object], bool]) -> str:
    """What would fit in the module that a path names."""
    if not isinstance(target, str):
        return ""
    module_name, _, name = target.partition(":")
    names = public_names(sys.modules[module_name], fits)
    return nearest(name, names) if names else ""
