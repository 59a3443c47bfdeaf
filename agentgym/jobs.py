"""The old name of `agentgym.run`: importing it says so."""

raise ImportError("agentgym.jobs is now agentgym.run; import from there")
