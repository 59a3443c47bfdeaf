"""Services to compose a loop of one's own from: a replay buffer, data sets that stream, rewards in processes."""
