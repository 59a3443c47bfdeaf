"""The jobs, assembled from all the other packages: train, evaluate."""
