"""The public modules: what plugins, scripts and custom training loops may import.

docs/stability.md says what is promised of them. The contract of import-linter for the plugins that ship with the
library, the marks in docs/architecture.md and the tests of what the pages import follow this list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PUBLIC: Final[Mapping[str, str]] = {
    "agentgym": "the names that most environments, plugins and scripts need",
    "agentgym.actors.actor": "actors of a custom training loop",
    "agentgym.actors.endpoint": "their endpoints",
    "agentgym.actors.launchers": "launchers",
    "agentgym.agents": "agents",
    "agentgym.commands": "subcommands",
    "agentgym.config": "settings as frozen dataclasses, built from plain values with errors that name the mistake",
    "agentgym.data_sets": "data sets of an environment's tasks",
    "agentgym.env": "environments",
    "agentgym.errors": "the errors that are the user's mistake or broken infrastructure",
    "agentgym.findings": "what a check reports",
    "agentgym.forge": "the names that programs of torchforge import",
    "agentgym.generators.config": "generator engines",
    "agentgym.grading": "graders, for a sandbox's method `grade`",
    "agentgym.gymnasium": "environments as `gymnasium.Env`",
    "agentgym.hooks": "the hooks of a plugin, and the registry that loads plugins",
    "agentgym.import_path": "objects by import path",
    "agentgym.killable": "functions in processes that can be killed",
    "agentgym.loops.pieces": "what a custom training loop replaces",
    "agentgym.loops.replay_buffer": "a replay buffer",
    "agentgym.loops.rewards": "rewards as replicas",
    "agentgym.loops.rows": "rows of a data set, as a custom training loop reads them",
    "agentgym.mcp": "tools of MCP servers",
    "agentgym.observed": "metrics that code in any process of a run records",
    "agentgym.policies.call_handler": "what answers the requests of the endpoint",
    "agentgym.programs": "processes, with which agents start programs",
    "agentgym.public": "this list",
    "agentgym.python_syntax": "Python source as a tree, in a process of several threads",
    "agentgym.recipe": "a whole run's settings",
    "agentgym.results": "saved evaluations in scripts and notebooks",
    "agentgym.rewards": "rewards",
    "agentgym.rl.advantages": "advantages",
    "agentgym.rl.losses": "losses",
    "agentgym.rl.losses.ops": "losses over logits, in a custom training loop",
    "agentgym.rl.losses.policy": "losses with the settings that ours share",
    "agentgym.rollout.tasks": "task samplers",
    "agentgym.sandbox": "sandboxes",
    "agentgym.serve.endpoint": "the endpoint for agent programs, in a program of one's own",
    "agentgym.session_tools": "tools that work in a sandbox session",
    "agentgym.sinks": "metric sinks",
    "agentgym.stability": "the warning of old names, and the version that a plugin states",
    "agentgym.testing": "tests of plugins",
    "agentgym.text.tool_formats.base": "formats of tool calls",
    "agentgym.tools": "tools of an environment",
    "agentgym.trainer.faults": "the batch of a training step that failed",
    "agentgym.types": "the data of an episode",
    "agentgym.weights.config": "weight stores",
}
"""By module, what it is for. Public are its names without a leading underscore; of a package those of its `__all__`."""
