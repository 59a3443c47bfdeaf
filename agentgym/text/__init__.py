"""Converts chat messages to token ids and back: chat templates, tool formats, tokenizers."""
