"""The actions of `agentgym sandbox`, one module each."""
