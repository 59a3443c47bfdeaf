"""An environment package of verifiers' older interface: two turns, and a reward that tells answers apart."""

import hashlib

import verifiers as vf
from datasets import Dataset


def luck(completion, answer):
    """A hash of all that was said, between 0 and 1."""
    said = "".join(message["content"] for message in completion if message["role"] == "assistant")
    return hashlib.sha256((answer + said).encode()).digest()[0] / 255


class TwoTurns(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **_):
        return [{"role": "user", "content": "Go on."}]


def load_environment(size=10):
    rows = [{"question": f"Say {n}.", "answer": str(n)} for n in range(size)]
    return TwoTurns(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[luck]), max_turns=2)
