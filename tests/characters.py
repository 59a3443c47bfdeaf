"""The scripted policy as fixtures."""

from __future__ import annotations

import pytest

from agentgym.testing import CharacterTokenizer, ScriptedGenerator


@pytest.fixture
def tokenizer() -> CharacterTokenizer:
    return CharacterTokenizer()


@pytest.fixture
def speaking(tokenizer: CharacterTokenizer):
    def make(*says: str | Exception, delay_s: float = 0.0, queued_s: float = 0.0) -> ScriptedGenerator:
        return ScriptedGenerator(says, tokenizer, delay_s=delay_s, queued_s=queued_s)

    return make


@pytest.fixture
def tokenizer_of():
    return CharacterTokenizer
