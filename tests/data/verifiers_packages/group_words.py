"""An environment package of verifiers' older interface, whose rewards compare the rollouts of a group."""

import verifiers as vf
from datasets import Dataset


def length(completion):
    return len(completion[-1]["content"]) / 100


def longest(completions):
    """A half for the longest of a group."""
    lengths = [len(one[-1]["content"]) for one in completions]
    return [0.5 * (one == max(lengths)) for one in lengths]


def load_environment(size=10):
    rows = [{"question": f"Say {n}.", "answer": str(n)} for n in range(size)]
    rubric = vf.Rubric(funcs=[length, longest], weights=[1.0, 0.5])
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=rubric)
