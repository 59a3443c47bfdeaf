"""vLLM behind the engine protocol; only these modules import it."""
