"""Teachers that can't teach are refused before anything starts."""

import json
import shutil
from pathlib import Path

import pytest

from agentgym.errors import UserError
from agentgym.models.resolve import resolve_model
from agentgym.recipe import build_recipe
from agentgym.run.settle import find_teacher


def recipe(teacher: str, seq_len: int = 512):
    return build_recipe({"advantage": {"name": "distillation", "teacher": teacher}, "trainer": {"seq_len": seq_len}})


def test_the_policy_can_be_its_own_teacher(tmp_path: Path) -> None:
    policy = resolve_model("builtin:tiny", tmp_path)
    assert find_teacher(recipe("builtin:tiny"), policy, tmp_path) == policy
    assert find_teacher(build_recipe({}), policy, tmp_path) is None


def test_a_teacher_with_other_tokens_or_too_few_positions_is_refused(tmp_path: Path) -> None:
    policy = resolve_model("builtin:tiny", tmp_path)
    other = Path(shutil.copytree(policy, tmp_path / "other"))
    content = json.loads((other / "tokenizer.json").read_text())
    first, second = [*content["model"]["vocab"]][40:42]
    vocab = content["model"]["vocab"]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (other / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"has other tokens than .*: 2 differ"):
        find_teacher(recipe(str(other)), policy, tmp_path)
    with pytest.raises(UserError, match=r"positions, but trainer\.seq_len is 1000000"):
        find_teacher(recipe("builtin:tiny", 1_000_000), policy, tmp_path)
    (other / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer\.json can't be compared"):
        find_teacher(recipe(str(other)), policy, tmp_path)
    with pytest.raises(UserError, match=r"advantage\.teacher is empty"):
        find_teacher(recipe(""), policy, tmp_path)
