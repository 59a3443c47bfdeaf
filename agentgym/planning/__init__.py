"""Plans a run before it starts: placement on GPUs, memory and step time."""
