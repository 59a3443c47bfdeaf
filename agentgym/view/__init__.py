"""The local page about runs: their data as JSON, and the server of `agentgym view`. It only reads, but for steering."""
