"""The plain engine: any causal language model that transformers knows, as transformers computes it."""
