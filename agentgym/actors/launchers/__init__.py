"""Launchers: where the processes of a run are started, on this host or on others."""

from agentgym.actors.launchers.attach import AttachLauncher
from agentgym.actors.launchers.cluster import KubernetesLauncher, SkyPilotLauncher
from agentgym.actors.launchers.launcher import CHILD_MODULE, LaunchedHost, Launcher
from agentgym.actors.launchers.local import LocalLauncher
from agentgym.actors.launchers.process import ProcessLauncher
from agentgym.actors.launchers.slurm import SlurmLauncher
from agentgym.actors.launchers.ssh import SshLauncher

__all__ = [
    "CHILD_MODULE",
    "AttachLauncher",
    "KubernetesLauncher",
    "LaunchedHost",
    "Launcher",
    "LocalLauncher",
    "ProcessLauncher",
    "SkyPilotLauncher",
    "SlurmLauncher",
    "SshLauncher",
]
