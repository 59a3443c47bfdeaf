"""What `agentgym sandbox` does, an action a module."""
