"""The old place of `agentgym.loops.replay_buffer`: importing it says so."""

raise ImportError("agentgym.rl.replay_buffer is now agentgym.loops.replay_buffer; import from there")
