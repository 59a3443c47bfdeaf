"""The old name of `agentgym.run`: importing it says so."""

from agentgym.stability import renamed

renamed("agentgym.jobs", "agentgym.run", goes="0.1")
