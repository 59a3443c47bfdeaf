"""The plain engine: any causal language model that transformers knows, one sequence at a time."""
