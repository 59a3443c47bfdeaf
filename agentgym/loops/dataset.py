"""The old place of `DatasetActor`: importing it says so."""

raise ImportError("agentgym.loops.dataset is now agentgym.loops.actors; import from there")
