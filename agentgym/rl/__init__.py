"""The RL algorithm: the loop, samples, packing, advantages and losses."""
