"""What loops of one's own may need besides the run's services: a replay buffer, rows that stream, rewards as replicas."""
