"""Components: the parts of a run that a recipe chooses by name or by import path, each with its own settings.

A component's class is a frozen dataclass that inherits the base class of its kind; its fields are its settings. So
`loss: {name: grpo, clip_low: 0.1}` makes `Grpo(clip_low=0.1)`, and `loss: {name: my_package.losses:MyLoss}` makes a
`MyLoss`. Ours are registered as a plugin's are, by import path.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from agentgym.errors import UserError, nearest
from agentgym.import_path import import_class, import_object

ComponentKind: TypeAlias = Literal[
    "losses", "advantages", "task_samplers", "generator_engines", "weight_stores", "launchers", "tool_formats", "agents"
]


@dataclass(frozen=True, slots=True)
class Seam:
    """One kind of component. base: import path of its base class. builtin: ours, by name."""

    noun: str
    base: str
    builtin: Mapping[str, str]


SEAMS: Mapping[ComponentKind, Seam] = {
    "losses": Seam(
        "loss",
        "agentgym.rl.losses:Loss",
        {
            "grpo": "agentgym.rl.losses.grpo:Grpo",
            "reinforce": "agentgym.rl.losses.reinforce:Reinforce",
            "ppo_clip": "agentgym.rl.losses.ppo_clip:PpoClip",
            "dr_grpo": "agentgym.rl.losses.ppo_clip:DrGrpo",
            "dapo": "agentgym.rl.losses.ppo_clip:Dapo",
            "cispo": "agentgym.rl.losses.cispo:Cispo",
            "gspo": "agentgym.rl.losses.gspo:Gspo",
            "sapo": "agentgym.rl.losses.sapo:Sapo",
            "dppo": "agentgym.rl.losses.dppo:Dppo",
            "tis": "agentgym.rl.losses.corrected:Tis",
            "mis": "agentgym.rl.losses.corrected:Mis",
            "decoupled": "agentgym.rl.losses.corrected:Decoupled",
            "module": "agentgym.rl.losses.module:ModuleLoss",
            "cross_entropy": "agentgym.rl.losses.cross_entropy:CrossEntropy",
        },
    ),
    "advantages": Seam(
        "advantage",
        "agentgym.rl.advantages:Advantage",
        {
            "std_normalized": "agentgym.rl.advantages.episodes:StdNormalized",
            "mean_only": "agentgym.rl.advantages.episodes:MeanOnly",
            "rloo": "agentgym.rl.advantages.episodes:Rloo",
            "opo": "agentgym.rl.advantages.episodes:Opo",
            "soft_overlong": "agentgym.rl.advantages.overlong:SoftOverlong",
            "per_turn": "agentgym.rl.advantages.turns:PerTurn",
            "gae_turns": "agentgym.rl.advantages.estimation:GaeTurns",
            "gae_tokens": "agentgym.rl.advantages.estimation:GaeTokens",
            "batch_std": "agentgym.rl.advantages.batch:BatchStd",
            "reinforce_plus_plus": "agentgym.rl.advantages.batch:ReinforcePlusPlus",
            "distillation": "agentgym.rl.advantages.distillation:Distillation",
        },
    ),
    "task_samplers": Seam(
        "task sampler",
        "agentgym.rollout.tasks:TaskSampler",
        {
            "shuffled": "agentgym.rollout.tasks:Shuffled",
            "sequential": "agentgym.rollout.tasks:Sequential",
            "learnable": "agentgym.rollout.learnable:Learnable",
        },
    ),
    "generator_engines": Seam(
        "generator engine",
        "agentgym.generators.config:EngineConfig",
        {
            "auto": "agentgym.generators.select:AutoEngine",
            "native": "agentgym.generators.select:NativeEngineConfig",
            "vllm": "agentgym.generators.select:VllmEngineConfig",
            "transformers": "agentgym.generators.select:TransformersEngineConfig",
        },
    ),
    "weight_stores": Seam(
        "weight store",
        "agentgym.weights.config:StoreConfig",
        {
            "shared_memory": "agentgym.weights.select:SharedMemoryConfig",
            "cuda_ipc": "agentgym.weights.select:CudaIpcConfig",
            "nccl": "agentgym.weights.select:NcclConfig",
            "torchstore": "agentgym.weights.select:TorchStoreConfig",
        },
    ),
    "launchers": Seam(
        "launcher",
        "agentgym.actors.launchers:Launcher",
        {
            "local": "agentgym.actors.launchers.local:LocalLauncher",
            "process": "agentgym.actors.launchers.process:ProcessLauncher",
            "attach": "agentgym.actors.launchers.attach:AttachLauncher",
            "ssh": "agentgym.actors.launchers.ssh:SshLauncher",
            "slurm": "agentgym.actors.launchers.slurm:SlurmLauncher",
            "kubernetes": "agentgym.actors.launchers.cluster:KubernetesLauncher",
            "skypilot": "agentgym.actors.launchers.cluster:SkyPilotLauncher",
        },
    ),
    "tool_formats": Seam(
        "tool format",
        "agentgym.text.tool_formats.base:ToolFormat",
        {
            "hermes": "agentgym.text.tool_formats.hermes:Hermes",
            "smollm2": "agentgym.text.tool_formats.hermes:SmolLM2",
            "qwen_coder": "agentgym.text.tool_formats.qwen_coder:QwenCoder",
            "llama_json": "agentgym.text.tool_formats.llama_json:LlamaJson",
            "pythonic": "agentgym.text.tool_formats.pythonic:Pythonic",
            "mistral": "agentgym.text.tool_formats.mistral:Mistral",
            "mistral_list": "agentgym.text.tool_formats.mistral:MistralList",
            "deepseek_v3": "agentgym.text.tool_formats.renderers:DeepSeekV3",
            "glm45": "agentgym.text.tool_formats.renderers:Glm45",
            "kimi_k2": "agentgym.text.tool_formats.renderers:KimiK2",
            "gpt_oss": "agentgym.text.tool_formats.renderers:GptOss",
        },
    ),
    "agents": Seam("agent", "agentgym.agents:Agent", {"chat": "agentgym.agents:Chat"}),
}


def component(kind: ComponentKind, default: str) -> Any:
    """A dataclass field that holds a component; without a value it is the one of ours of that name."""
    return dataclasses.field(default_factory=lambda: find(kind, default)(), metadata={"component": kind})


def kind_of(field: dataclasses.Field[Any]) -> ComponentKind | None:
    """The kind of the component that the field holds; None if it holds something else."""
    return cast("ComponentKind | None", field.metadata.get("component"))


def find(kind: ComponentKind, name: str) -> type:
    """The class of one of ours by name, or of any by import path. Raises UserError for everything else."""
    seam = SEAMS[kind]
    path = name if ":" in name else seam.builtin.get(name)
    if path is None:
        raise UserError(f"no {seam.noun} {name!r}.{nearest(name, seam.builtin)}")
    base = import_object(seam.base)
    assert isinstance(base, type)
    if kind == "losses" and ":" in name and _of_torch(path):
        return find(kind, "module")  # torchforge's form; see `ModuleLoss`
    wanted = f"a {seam.noun}: a frozen dataclass that inherits {seam.base.replace(':', '.')}"
    found = import_class(path, wanted, base)
    parameters = vars(found).get("__dataclass_params__")
    if parameters is None or not parameters.frozen:
        raise UserError(
            f"{path!r} has no settings: the fields of its class are, so write "
            f"@dataclass(frozen=True, kw_only=True) above `class {found.__name__}`"
        )
    if "name" in field_types(found):
        raise UserError(f"{path!r} has a field `name`, by which recipes choose a {seam.noun}; rename it")
    return found


def _of_torch(path: str) -> bool:
    """Whether the path leads to a module of torch; torch is not imported to find out."""
    try:
        found = import_object(path)
    except UserError:
        return False  # `import_class` says what is wrong
    return any(base.__module__ == "torch.nn.modules.module" for base in getattr(found, "__mro__", ()))


def name_of(kind: ComponentKind, value: object) -> str:
    """The name by which a recipe chooses this component: ours by name, all others by import path."""
    module, name = type(value).__module__, type(value).__qualname__

    def is_its(path: str) -> bool:
        """Also where a package offers what one of its modules defines."""
        place, _, inner = path.partition(":")
        return inner == name and f"{module}.".startswith(f"{place}.")

    return next((own for own, path in SEAMS[kind].builtin.items() if is_its(path)), f"{module}:{name}")


@functools.cache
def field_types(cls: type) -> dict[str, object]:
    """The types of a dataclass's fields; Json, which refers to itself, is taken as any value."""
    return typing.get_type_hints(cls, localns={"Json": object})
