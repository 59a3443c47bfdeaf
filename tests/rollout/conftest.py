"""The fakes of the rollout, as fixtures."""

from characters import speaking, tokenizer, tokenizer_of

__all__ = ["speaking", "tokenizer", "tokenizer_of"]
