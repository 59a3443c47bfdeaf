"""What loops of one's own may need beside a run's services: a replay buffer, rows that stream, rewards as replicas."""
