"""The jobs, assembled from all other rooms: train, fine-tune, evaluate, replay, serve."""
