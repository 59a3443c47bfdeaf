"""The old place of `DatasetActor`: importing it says so."""

from agentgym.stability import renamed

renamed("agentgym.loops.dataset", "agentgym.loops.actors", goes="0.1")
