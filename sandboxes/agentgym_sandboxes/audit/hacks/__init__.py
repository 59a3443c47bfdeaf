"""The reward hacks: solutions that cheat a grade."""
