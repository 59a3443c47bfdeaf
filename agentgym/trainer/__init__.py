"""Trains the policy: the TorchTitan engine, its actor and client, the learner, the reference and checkpoints."""
