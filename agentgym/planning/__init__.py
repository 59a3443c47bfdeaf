"""What a run needs, before it is started: places, memory, and how fast it would be."""
