"""The controller's parts of a job: environment, rewards, chat rendering, sandbox."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentgym.env import Environment
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.recipe import ModelConfig, Recipe
from agentgym.rollout.activity import Activity
from agentgym.rollout.chat import ChatRenderer
from agentgym.rollout.environments import build_environment
from agentgym.rollout.episode import EpisodePlayer
from agentgym.rollout.generator import Generator
from agentgym.rollout.sandboxes import WatchedSandbox, choose_sandbox
from agentgym.rollout.scoring import Scorer
from agentgym.rollout.tasks import held_out_tasks, training_tasks
from agentgym.rollout.tokenizer import HuggingFaceTokenizer
from agentgym.runs.report import Reporter
from agentgym.sandbox import Capabilities, SandboxBackend
from agentgym.types import Task


def resolve_model(model: ModelConfig, scratch: Path) -> Path:
    """A local folder in Hugging Face's format; hub names are downloaded to the hub's own cache."""
    if model.path == "builtin:tiny":
        from agentgym.models.tiny import policy_path

        folder = policy_path()
    elif Path(model.path).is_dir():
        folder = Path(model.path)
        if not (folder / "config.json").is_file() and (folder / "hf" / "config.json").is_file():
            folder = folder / "hf"  # one of our own checkpoints
    elif Path(model.path).exists() or model.path.startswith((".", "/")) or model.path.count("/") != 1:
        raise UserError(
            f"model.path {model.path!r} is no folder; give a Hugging Face folder, a checkpoint of a run, "
            "a hub name like Qwen/Qwen3-0.6B, or builtin:tiny"
        )
    else:
        folder = _download(model.path)
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} has no config.json, so it is no Hugging Face model folder")
    if model.random_weights:
        from agentgym.models.random_weights import write_random_policy

        return write_random_policy(folder, scratch / "random-weights")
    return folder


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # the hub client raises many kinds: all mean that it can't be had
        raise UserError(f"model {name!r} can't be had from the hub: {error}") from error


@dataclass(slots=True, kw_only=True)
class Gym:
    """What plays episodes, apart from the generator. `close` it in the end."""

    environment: Environment
    renderer: ChatRenderer
    scorer: Scorer
    backend: SandboxBackend | None
    capabilities: Capabilities | None  # of the backend, on this machine
    activity: Activity
    recipe: Recipe

    @classmethod
    async def open(
        cls, recipe: Recipe, model_path: Path, registry: PluginRegistry, reporter: Reporter
    ) -> Gym:
        """Check everything that can be wrong before anything is started; then start the sandbox."""
        environment = build_environment(registry, recipe.env.name, recipe.env.options)
        scorer = Scorer.of(environment, registry, recipe.rewards)
        renderer = ChatRenderer(HuggingFaceTokenizer(str(model_path), recipe.model.chat_template))
        check_lengths(recipe)
        some = [next(training_tasks(environment, recipe.loop.seed)), *held_out_tasks(environment, 1)]
        sandbox = recipe.sandbox
        backend = await choose_sandbox(sandbox.name, sandbox.options, some, registry, reporter.note)
        capabilities = None
        if backend is not None:
            capabilities = await backend.probe()
            if not capabilities.isolated:
                reporter.note(f"UNSAFE: the sandbox {backend.name!r} does not contain what the policy writes")
            reporter.phase(f"starting the {backend.name} sandbox")
            await backend.start()
        return cls(
            environment=environment,
            renderer=renderer,
            scorer=scorer,
            backend=backend,
            capabilities=capabilities,
            activity=Activity(),
            recipe=recipe,
        )

    def player(self, generator: Generator) -> EpisodePlayer:
        sandbox = WatchedSandbox(self.backend, self.activity) if self.backend is not None else None
        return EpisodePlayer(
            environment=self.environment,
            renderer=self.renderer,
            generator=generator,
            scorer=self.scorer,
            config=self.recipe.rollout,
            sandbox=sandbox,
            activity=self.activity,
        )

    def sandbox_metrics(self) -> dict[str, float]:
        return self.backend.metrics() if self.backend is not None else {}

    def held_out(self, count: int) -> list[Task]:
        return held_out_tasks(self.environment, count)

    async def close(self) -> None:
        await self.scorer.close()
        if self.backend is not None:
            await self.backend.close()


def check_lengths(recipe: Recipe) -> None:
    """An episode must fit the generator's context and the trainer's rows."""
    longest = recipe.rollout.max_episode_tokens
    for name, limit in (
        ("generator.max_model_len", recipe.generator.max_model_len),
        ("trainer.seq_len", recipe.trainer.seq_len),
    ):
        if longest > limit:
            raise UserError(
                f"rollout.max_episode_tokens is {longest} but {name} is only {limit}: "
                "an episode would not fit; lower the one or raise the other"
            )


def check_sampling(recipe: Recipe) -> None:
    """The trainer knows the softmax at a temperature, not a distribution that was cut."""
    rollout = recipe.rollout
    if rollout.top_p < 1 or rollout.top_k > 0:
        raise UserError(
            f"training with rollout.top_p = {rollout.top_p} and rollout.top_k = {rollout.top_k} would compare "
            "log-probabilities of two different distributions; train with top_p 1 and top_k 0, and cut "
            "only in `agentgym eval`"
        )
