"""The command line. `agentgym.cli.main` finds the command; each command is a module of its own."""
