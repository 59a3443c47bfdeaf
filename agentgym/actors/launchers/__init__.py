"""Launchers: where the processes of a run are started, on this host or on others."""

from agentgym.actors.launchers.attach import AttachLauncher
from agentgym.actors.launchers.launcher import CHILD_MODULE, LaunchedHost, Launcher
from agentgym.actors.launchers.local import LocalLauncher
from agentgym.actors.launchers.process import ProcessLauncher

__all__ = ["CHILD_MODULE", "AttachLauncher", "LaunchedHost", "Launcher", "LocalLauncher", "ProcessLauncher"]
