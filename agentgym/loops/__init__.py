"""Parts of custom training loops: a replay buffer, streamed data sets, rewards as replicas."""
