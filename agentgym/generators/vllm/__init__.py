"""vLLM behind the `GeneratorEngine` protocol; only these modules import it."""
