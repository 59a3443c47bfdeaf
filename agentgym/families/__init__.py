"""Model families, one record each: what the trainer, the planner and the generators have to know of an architecture."""
