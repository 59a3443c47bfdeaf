"""The old place of `agentgym.loops.replay_buffer`: importing it says so."""

from agentgym.stability import renamed

renamed("agentgym.rl.replay_buffer", "agentgym.loops.replay_buffer", goes="0.1")
