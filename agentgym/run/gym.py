"""What plays episodes in a job, apart from the generator: environment, rewards, chat rendering, sandbox."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict

from agentgym.agents import Agent, Chat, ProgramEnvironment
from agentgym.components import SEAMS, name_of
from agentgym.env import Environment
from agentgym.errors import UserError, pip_install
from agentgym.hooks import PluginRegistry
from agentgym.models.resolve import local_folder
from agentgym.planning.layout import too_long
from agentgym.plugin_errors import blamed
from agentgym.policies.by_agent import AgentPlayer, OwnProgram, ProgramEndpoint
from agentgym.recipe import ModelConfig, Recipe, SandboxConfig
from agentgym.rollout.activity import Activity
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.environments import build_environment
from agentgym.rollout.episode import EpisodePlayer
from agentgym.rollout.generator import Generator
from agentgym.rollout.sandboxes import choose_sandbox, make_images, watched
from agentgym.rollout.scoring import Scorer
from agentgym.rollout.tasks import HeldOut, first_tasks, held_out_tasks
from agentgym.run.positions import check_positions, positions_of
from agentgym.run.settle import Settled
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import Reporter
from agentgym.sandbox import Capabilities, Sandbox, SandboxBackend
from agentgym.text.chat import ChatRenderer
from agentgym.text.continuation import check_template
from agentgym.text.tokenizer import HuggingFaceTokenizer
from agentgym.text.tool_formats.base import GuardedFormat, ToolFormat
from agentgym.tools import Schema, Toolbox
from agentgym.types import SandboxSpec, Task

log = logging.getLogger(__name__)

SAMPLED_TASKS = 64  # of each split, whose prompts are measured before anything is started
TEMPLATE_TOKENS = 256  # that a chat template writes around a prompt, at most


class _Shared(TypedDict):
    """What every player has."""

    environment: Environment
    renderer: ChatRenderer
    generator: Generator
    scorer: Scorer
    config: RolloutConfig
    sandbox: Sandbox | None
    activity: Activity


@dataclass(slots=True, kw_only=True)
class Gym:
    """Opened once for each job; call `close` at the end."""

    environment: Environment
    chat: ChatRenderer | None  # None where the policy is known by its messages alone
    scorer: Scorer
    backend: SandboxBackend | None
    capabilities: Capabilities | None  # of the backend, on this machine
    activity: Activity
    settled: Settled
    agent: Agent  # that of the recipe, or the environment's own program
    endpoint: ProgramEndpoint | None = (
        None  # through which an agent's program asks the policy; None: the built-in loop plays
    )
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)  # of the endpoint
    noted: set[str] = field(default_factory=set)  # what was said of its tasks, which every evaluation would repeat
    made: set[SandboxSpec] = field(default_factory=set)  # specs whose images were made, or can't be

    @classmethod
    async def open(cls, settled: Settled, reporter: Reporter, *, training: bool = True) -> Gym:
        """Check everything that the user may have set wrongly, then start the sandbox.

        A policy behind a server writes the conversations itself. training: whether tasks of the train split are played
        too.
        """
        recipe, registry, model_path = settled.recipe, settled.registry, settled.model_path
        environment, scorer, train, test = prepare(recipe, registry, training=training, here=model_path is not None)
        renderer = None if model_path is None else open_renderer(recipe.model, model_path, registry)
        some = [*train, *test]
        tools = None if environment.tools is None else Toolbox.of(environment.tools).schemas
        if renderer is not None:
            turns = recipe.rollout.max_turns or environment.max_turns
            shapes = {tuple(message["role"] for message in task.prompt) for task in some}
            for note in {check_template(renderer, roles, turns=turns, tools=tools) for roles in shapes} - {""}:
                reporter.note(note)
            for tasks in [train, test] if training else [test]:
                _check_prompts(recipe, renderer, tasks, tools, positions_of(model_path))
        agent = _agent_of(recipe, environment, here=renderer is not None)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(_close, agent)
            with blamed("agents", agent):
                await agent.check()
            if agent.wants_session:
                some = [_with_session(task, agent, environment) for task in some]
            with blamed("agents", agent):
                volumes = await agent.volumes()
            sandbox = with_volumes(recipe.sandbox, volumes, registry)
            backend, capabilities = await _open_sandbox(sandbox, some, registry, reporter)
            gym = cls(
                environment=environment,
                chat=renderer,
                scorer=scorer,
                backend=backend,
                capabilities=capabilities,
                activity=Activity(),
                settled=settled,
                agent=agent,
            )
            undo.push_async_callback(gym.close)
            await gym._open_endpoint()
            left_out = await gym.make_images(some, reporter)
            gym.expect(task for task in some[: len(train)] if task.task_id not in left_out)
            undo.pop_all()
        return gym

    async def _open_endpoint(self) -> None:
        agent = self.agent
        if isinstance(agent, Chat):
            return
        try:
            from agentgym.serve.endpoint import Endpoint
        except ModuleNotFoundError as error:
            raise UserError(
                f"{_name_of(agent)} asks the policy through an endpoint, which needs {error.name}: "
                f"{pip_install('serve')}"
            ) from error
        self.stack.push_async_callback(_close, agent)
        self.endpoint = await self.stack.enter_async_context(Endpoint())

    @property
    def renderer(self) -> ChatRenderer:
        assert self.chat is not None, "a policy behind a server writes its conversations itself"
        return self.chat

    @property
    def sandbox(self) -> Sandbox | None:
        """The sandbox of episodes: its calls are seen in the activity."""
        return watched(self.backend, self.activity) if self.backend is not None else None

    def player(self, generator: Generator) -> EpisodePlayer:
        shared: _Shared = {
            "environment": self.environment,
            "renderer": self.renderer,
            "generator": generator,
            "scorer": self.scorer,
            "config": self.settled.recipe.rollout,
            "sandbox": self.sandbox,
            "activity": self.activity,
        }
        if self.endpoint is None:
            return EpisodePlayer(**shared)
        name = self.environment.name if isinstance(self.agent, OwnProgram) else name_of("agents", self.agent)
        return AgentPlayer(agent=self.agent, name=name, endpoint=self.endpoint, **shared)

    def sandbox_metrics(self) -> dict[str, float]:
        return self.backend.metrics() if self.backend is not None else {}

    async def make_images(self, tasks: Iterable[Task], reporter: Reporter) -> set[str]:
        """Make the images that tasks bring, once; the ids of those that are left out since. Raises UserError."""
        new = [task for task in tasks if not self.made.issuperset(self.environment.specs(task))]
        if self.backend is None or not new:
            return set()
        if any(spec.context for task in new for spec in self.environment.specs(task)):
            reporter.phase("building the images of tasks")
        self.made.update(spec for task in new for spec in self.environment.specs(task))
        return await make_images(self.backend, self.environment, new)

    def expect(self, tasks: Iterable[Task]) -> None:
        """These come next: what their sandboxes need is prepared meanwhile."""
        if self.backend is not None:
            self.backend.expect([task.sandbox for task in tasks if task.sandbox is not None])

    def record_sandbox(self, folder: RunFolder) -> None:
        """Save what the sandbox enforces, and at the end the images that it had for tasks."""
        backend = self.backend
        if backend is not None and self.capabilities is not None:
            folder.save_sandbox(self.capabilities)
            self.stack.callback(lambda: folder.save_images(backend.images()))

    async def close(self) -> None:
        await self.stack.aclose()
        await self.scorer.close()
        if self.backend is not None:
            await self.backend.close()


def _agent_of(recipe: Recipe, environment: Environment, *, here: bool) -> Agent:
    """Raises UserError for one that cannot play in this environment, or not with a policy behind a server."""
    agent: Agent = recipe.agent
    if isinstance(environment, ProgramEnvironment):
        if not isinstance(agent, Chat):
            raise UserError(
                f"{environment.name!r} plays its episodes with a program of its own; leave the agent "
                f"{name_of('agents', agent)!r} out"
            )
        agent = OwnProgram(environment=environment)
    if not here and not isinstance(agent, Chat):
        advice = "" if isinstance(agent, OwnProgram) else ", or leave the agent out"
        raise UserError(f"{_name_of(agent)} cannot play with a policy behind a server; give a model's folder{advice}")
    return agent


def _name_of(agent: Agent) -> str:
    if isinstance(agent, OwnProgram):
        return f"the environment {agent.environment.name!r}"
    return f"the agent {name_of('agents', agent)!r}"


async def _close(agent: Agent) -> None:
    with blamed("agents", agent):
        await agent.close()


def with_volumes(sandbox: SandboxConfig, volumes: Mapping[str, str], registry: PluginRegistry) -> SandboxConfig:
    """The settings of a sandbox whose sessions have what an agent needs. Raises UserError for one without volumes."""
    if not volumes:
        return sandbox
    if sandbox.name != "auto" and "volumes" not in registry.sandbox(sandbox.name).contents:
        able = [name for name, plugin in registry.sandboxes().items() if "volumes" in plugin.contents]
        raise UserError(
            f"sandbox.name is {sandbox.name}, and agent.where is session, which needs a sandbox whose sessions can be "
            f"given folders; take one of: {', '.join(able) or '(none is installed)'}"
        )
    given = sandbox.options.get("volumes")
    own = given if isinstance(given, dict) else {}  # all else is refused with the other options
    return replace(sandbox, options={**sandbox.options, "volumes": {**volumes, **own}})


async def _open_sandbox(
    sandbox: SandboxConfig, tasks: Sequence[Task], registry: PluginRegistry, reporter: Reporter
) -> tuple[SandboxBackend | None, Capabilities | None]:
    backend = await choose_sandbox(sandbox.name, sandbox.options, tasks, registry, reporter.note)
    if backend is None:
        return None, None
    capabilities = await backend.probe()
    if not capabilities.isolated:
        reporter.note(f"UNSAFE: the sandbox {backend.name!r} does not contain what the policy writes")
    reporter.phase(f"starting the {backend.name} sandbox")
    await backend.start()
    return backend, capabilities


def _with_session(task: Task, agent: Agent, environment: Environment) -> Task:
    """The task, asking for a session. Raises UserError where it runs no code."""
    if task.sandbox is None:
        raise UserError(
            f"the agent {name_of('agents', agent)!r} works in a session of the sandbox, but the tasks of "
            f"{environment.name!r} use no sandbox; change the agent's settings, or take another environment"
        )
    return replace(task, sandbox=replace(task.sandbox, session=True, allow_interpreters=()))


def open_renderer(model: ModelConfig, model_path: Path, registry: PluginRegistry) -> ChatRenderer:
    """How conversations with a model are written. Raises UserError for a tokenizer or format that is unavailable."""
    tokenizer = HuggingFaceTokenizer(str(model_path), model.chat_template)
    chosen = None if model.tool_format == "auto" else registry.component("tool_formats", model.tool_format)()
    return ChatRenderer(
        tokenizer,
        chosen and GuardedFormat(chosen),
        model.tool_instruction,
        lambda: tuple(plugin_formats(registry).values()),
    )


def plugin_formats(registry: PluginRegistry) -> dict[str, ToolFormat]:
    """The plugins' formats of tool calls by name; one that cannot be loaded is left out, and a warning says so."""
    found: dict[str, ToolFormat] = {}
    for name in registry.names("tool_formats"):
        if name in SEAMS["tool_formats"].builtin:
            continue
        try:
            found[name] = GuardedFormat(registry.component("tool_formats", name)())
        except UserError as error:
            log.warning("it is not tried whether the chat template writes a plugin's tool format: %s", error)
    return found


def prepare(
    recipe: Recipe, registry: PluginRegistry, *, training: bool = True, here: bool = True, num_test: int = SAMPLED_TASKS
) -> tuple[Environment, Scorer, list[Task], list[Task]]:
    """The environment with its options, its rewards, and the first tasks of training and of those held out.

    Starts nothing and needs no model. here: whether our generators sample from the policy. num_test: of those held out,
    at most. Raises UserError for what none of them can be.
    """
    if recipe.model.tool_format != "auto":
        registry.component("tool_formats", recipe.model.tool_format)
    environment = build_environment(registry, recipe.env.name, recipe.env.options)
    _agent_of(recipe, environment, here=here)
    scorer = Scorer.of(environment, registry, recipe.rewards)
    if here:
        _check_lengths(recipe)
    # an evaluation set has none of training
    train = first_tasks(recipe.task_sampler, environment, recipe.loop.seed, SAMPLED_TASKS) if training else []
    return environment, scorer, train, held_out_tasks(environment, min(num_test, recipe.eval.tasks))


def refuse_long_prompts(
    recipe: Recipe, registry: PluginRegistry, *, training: bool = True, here: bool = True, count: bool = False
) -> HeldOut:
    """Checks, for a dry run, what `prepare` checks, and the prompts' lengths if the tokenizer is on this machine.

    It is not loaded for prompts of so few bytes that they fit. Returns how many held-out tasks there are. count: draw
    them all for that, which may take long.
    """
    positions = positions_of(local_folder(recipe.model.path)) if here else None
    most = recipe.eval.tasks if count else SAMPLED_TASKS
    environment, _, train, test = prepare(recipe, registry, training=training, here=here, num_test=most)
    splits = train, test[:SAMPLED_TASKS]
    longest = max((len(str(task.prompt).encode()) for tasks in splits for task in tasks), default=0)
    tools = None if environment.tools is None else Toolbox.of(environment.tools).schemas
    limit = min(recipe.rollout.max_episode_tokens, positions or sys.maxsize)
    room = limit - TEMPLATE_TOKENS - len(str(tools or "").encode())
    folder = local_folder(recipe.model.path) if here and longest >= room else None  # a server counts its own tokens
    if folder is not None:
        renderer = open_renderer(recipe.model, folder, registry)
        for tasks in filter(None, splits):
            _check_prompts(recipe, renderer, tasks, tools, positions)
    if here:
        check_positions(recipe)  # after the prompts: its advice is to be of use to them
    all_drawn = len(test) < most or recipe.eval.tasks <= most
    return HeldOut.of(environment, recipe.eval.tasks, len(test) if all_drawn else None)


def _check_prompts(
    recipe: Recipe, renderer: ChatRenderer, tasks: Sequence[Task], tools: Sequence[Schema] | None, positions: int | None
) -> None:
    """Each prompt must leave the agent a token. What an environment adds at an episode's start is not known here.

    positions: of the model, which no setting can raise; None where they are unknown.
    """
    limit = min(recipe.rollout.max_episode_tokens, positions or sys.maxsize)
    lengths = [len(renderer.prompt(task.prompt, tools)) for task in tasks]
    longest = max(lengths)
    if longest < limit:
        return
    task = tasks[lengths.index(longest)]
    num = sum(length >= limit for length in lengths)
    given = f"rollout.max_episode_tokens is {recipe.rollout.max_episode_tokens}"
    if positions is not None and longest >= positions:
        given = f"the model has {positions} positions"
        advice = "No setting helps: take a model with more positions, or shorter tasks"
    else:
        most = positions or sys.maxsize
        wanted = min(longest + recipe.rollout.max_turn_tokens, most)
        limits = {
            "rollout.max_episode_tokens": recipe.rollout.max_episode_tokens,
            "generator.max_model_len": recipe.generator.max_model_len,
            "trainer.seq_len": recipe.trainer.seq_len,
        }
        flags = " ".join(f"--{name} {wanted}" for name, value in limits.items() if not wanted <= value <= most)
        advice = f"Give {flags}, or choose shorter tasks"
    raise UserError(
        f"task {task.task_id!r} has a prompt of {longest} tokens, but {given}, so the agent could say nothing ({num} "
        f"of the first {len(tasks)} tasks of the {task.split} split). {advice}"
    )


def _check_lengths(recipe: Recipe) -> None:
    for problem in too_long(recipe.rollout.max_episode_tokens, recipe.trainer, recipe.generator):
        raise UserError(problem)
