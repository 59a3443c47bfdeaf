"""How the tiny policy is made: honest demonstrations, a mix that no number of workers changes, a folder that loads."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from agentgym.rl.demonstrations import written
from agentgym.text.chat import ChatRenderer
from agentgym.text.continuation import check_template
from agentgym.text.tokenizer import HuggingFaceTokenizer
from agentgym_envs.code_exec.operations import OPERATIONS, source
from agentgym_envs.code_exec.procedural import pipeline

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def _apps_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))  # apps are no part of the installed package


def run_app(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "apps.sft", "--out", str(out), *options],
        cwd=ROOT,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture
def tokenizer(tmp_path: Path) -> HuggingFaceTokenizer:
    """Of a small mix."""
    from apps.sft.mix import MixConfig, mixed
    from apps.sft.policy import rendered
    from apps.sft.tokenizer import save_tokenizer, train_tokenizer

    trained = train_tokenizer(rendered(islice(mixed(MixConfig(), 0, -1), 300)), vocab_size=600, max_token_chars=24)
    save_tokenizer(trained, tmp_path, max_length=1024)
    return HuggingFaceTokenizer(str(tmp_path))


def test_demonstrations_alternate_and_come_from_the_train_split() -> None:
    from apps.sft.demonstrations import DemonstrationConfig, demonstrations

    config = DemonstrationConfig()
    for index, messages in enumerate(islice(demonstrations(config), 200)):
        roles = [message["role"] for message in messages]
        assert roles in (["user", "assistant"], ["user", "assistant", "user", "assistant"])
        made = pipeline("train", f"demonstration/0/{index}", config.weights)
        assert made.split == "train" and made.request in messages[0]["content"]
        right = source(made.steps, "f")
        if len(messages) == 4:
            assert messages[1]["content"] != right
            assert messages[2]["content"].startswith("f([") and ", expected " in messages[2]["content"]


def test_the_shares_of_mistakes_are_those_of_the_config() -> None:
    from apps.sft.demonstrations import HABITS, DemonstrationConfig, demonstrations

    assert set(HABITS) | set(HABITS.values()) <= set(OPERATIONS)
    for config, low, high in (
        (DemonstrationConfig(mistake_share=0.0, habit_share=0.0), 1.0, 1.0),
        (DemonstrationConfig(mistake_share=1.0, habit_share=1.0, weights={1: 1.0}), 0.0, 0.02),
        (DemonstrationConfig(), 0.2, 0.5),
    ):
        right = 0
        for index, messages in enumerate(islice(demonstrations(config), 300)):
            made = pipeline("train", f"demonstration/0/{index}", config.weights)
            right += messages[1]["content"] == source(made.steps, "f")
        assert low <= right / 300 <= high


def test_instructions_have_one_right_answer_that_the_environment_takes_and_no_request_is_in_both_splits() -> None:
    from apps.sft.instructions import KINDS, Obey

    environment = Obey()
    seen: dict[str, set[tuple[str, Any]]] = {"train": set(), "test": set()}
    for split in ("train", "test"):
        for task in islice(environment.tasks(split), 500):
            seen[split].add((task.prompt[0]["content"], task.answer))
            [said] = environment.solve(task)
            assert said["content"] == task.answer and task.answer.strip()
    assert not {request for request, _ in seen["train"]} & {request for request, _ in seen["test"]}
    assert {task.task_id.partition("/")[0] for task in environment.tasks("test")} == set(KINDS)


def test_as_many_instructions_are_followed_as_the_config_says() -> None:
    from apps.sft.instruction_demonstrations import InstructionDemonstrationConfig, instruction_demonstrations

    for share in (0.0, 0.65, 1.0):
        config = InstructionDemonstrationConfig(right_share=share, manners={"plain": 1.0}, talk_share=0.0)
        shown = [one.messages for one in islice(instruction_demonstrations(config), 400)]
        right = sum(solved(messages[-2]["content"], messages[-1]["content"]) for messages in shown)
        counted = [m for m in shown if m[-2]["content"].startswith(("Sort", "Put in order"))]
        assert abs(right / len(counted) - share) < 0.15
    config = InstructionDemonstrationConfig(talk_share=0.0)
    ends = Counter(one.messages[-1]["content"][-1:] for one in islice(instruction_demonstrations(config), 400))
    assert ends["."] > 40, "some say more than the answer"


def solved(request: str, said: str) -> bool:
    """Whether digits were sorted: a second, obvious computation."""
    if not request.startswith(("Sort", "Put in order")):
        return False
    return said.split() == sorted(letter for letter in request if letter.isdigit())


def test_the_mix_has_its_shares_and_other_chunks_are_of_other_tasks() -> None:
    from apps.sft.mix import MixConfig, mixed

    config = MixConfig(shares={"code": 1.0, "math": 3.0})
    shown = list(islice(mixed(config, 0, 5), 400))
    assert shown == list(islice(mixed(config, 0, 5), 400))
    code = sum("Write f(xs)" in one.messages[0]["content"] for one in shown)
    assert abs(code / 400 - 0.25) < 0.08
    others = {one.messages[0]["content"] for one in islice(mixed(config, 0, 6), 400)}
    common = others & {one.messages[0]["content"] for one in shown if "Write f(xs)" in one.messages[0]["content"]}
    assert len(common) < 10
    with pytest.raises(ValueError, match=r"mix.shares is .*give a share above 0"):
        MixConfig(shares={"cod": 1.0})


def test_every_family_is_written_with_the_policys_own_template(tokenizer: HuggingFaceTokenizer) -> None:
    from apps.sft.mix import FAMILIES, MixConfig, mixed

    renderer = ChatRenderer(tokenizer)
    assert check_template(renderer, ["system", "user"], turns=3) == ""
    assert renderer.tool_use.native and type(renderer.tool_use.format).__name__ == "Hermes"
    for family in FAMILIES:
        for one in islice(mixed(MixConfig(shares={family: 1.0}), 0, 1), 30):
            made = written(one, renderer)
            text = tokenizer.decode(made.token_ids)
            assert text.count("<|im_start|>assistant") == sum(m["role"] == "assistant" for m in one.messages)
            assert len(made) < 512 and sum(made.trained) < len(made)
            for tool in one.tools:
                assert f"\n{tool['function']['name']}(" in text  # type: ignore[index,call-overload]


def test_the_stream_is_the_same_for_every_number_of_workers(
    tokenizer: HuggingFaceTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from apps.sft import stream
    from apps.sft.mix import MixConfig

    config = stream.StreamConfig(
        mix=MixConfig(shares={"instructions": 1.0}), seed=3, tokenizer=str(tmp_path), seq_len=40
    )
    alone = list(islice(stream.chunks(config, 0), 3))
    assert all(len(one) <= 40 for chunk in alone for one in chunk) and len(alone[0]) < stream.CHUNK
    made = stream.chunks(config, 1)
    assert list(islice(made, 3)) == alone
    made.close()


def test_a_wrong_option_ends_with_2_and_names_the_nearest(tmp_path: Path) -> None:
    ended = run_app(tmp_path, "--set", "stps=3")
    assert ended.returncode == 2 and "Did you mean 'steps'" in ended.stderr


@pytest.mark.hostile
def test_the_same_recipe_gives_the_same_policy_and_it_loads(tmp_path: Path) -> None:
    digests = []
    for name in ("a", "b"):
        options = ("steps=2", "conversations_per_step=4", "tokenizer.conversations=400", "trainer.threads=1")
        words = [word for option in options for word in ("--set", option)]
        ended = run_app(tmp_path / name, "--no-measure", "--set", f"workers={len(digests)}", *words)
        assert ended.returncode == 0, ended.stderr
        folder = tmp_path / name / "policy"
        files = sorted(folder.iterdir())
        digests.append({file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files})
    assert digests[0] == digests[1]
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from apps.sft.policy import ShapeConfig

    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(folder)) == ShapeConfig().vocab_size
    assert sum(file.stat().st_size for file in files) < 8_000_000


def test_the_recipe_files_are_recipes() -> None:
    from agentgym.config import build
    from agentgym.run.layers import finish_recipe
    from agentgym.yaml import read_yaml
    from apps.sft.train import PolicyRecipe

    folder = ROOT / "apps" / "sft"
    assert build(PolicyRecipe, read_yaml(folder / "gpu.yaml")).trainer.device == "cuda"
    recipe, _ = finish_recipe(read_yaml(folder / "warm_start.yaml"))
    assert (recipe.env.name, recipe.sft.oracle_tasks) == ("math", 2000)
