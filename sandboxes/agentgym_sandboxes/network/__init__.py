"""A proxy that lets a session reach the hosts it was allowed, and nothing else."""
