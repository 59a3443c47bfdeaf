"""The local page about runs: its server, its live events, plays by hand. It only reads, but for steering."""
