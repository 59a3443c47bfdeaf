"""`agentgym train --dry-run`: what it shows, and what it refuses before anything starts."""

from __future__ import annotations

import json
import re
import shutil
from itertools import islice
from pathlib import Path

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from agentgym.config import build
from agentgym.data_sets import OutOfReach
from agentgym.models.tiny import policy_path
from agentgym.recipe import Recipe
from agentgym.runs.folder import RunFolder

FAULTY = Path(__file__).parents[1] / "data" / "faulty"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("TasksRaise", r"'TasksRaise': tasks\('t\w+', \d+\) raises KeyError: 'sums/\S+', at .*broken.py:\d+ in tasks"),
        ("YieldsMappings", r"'YieldsMappings': tasks\('train', 0\) gave .*not a Task but of type dict"),
        ("PromptIsAText", r"its prompt is a text; give messages, as in \[{\"role\": \"user\""),
        ("IdIsANumber", r"its task_id \d+ is not a text"),
        ("PlainReply", r"has to be `async def reply`: .*broken.py:\d+"),
        ("InitRaises", r"could not be built: KeyError: 'table', at .*broken.py:\d+ in __init__"),
        ("NeedsItsTable", r"could not be built without options: .* missing 1 required .*'table'"),
    ],
)
def test_what_no_episode_could_be_played_with_is_found_before_anything_starts(
    cli, name: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(FAULTY)
    end = cli.train("--env", f"broken.py:{name}", "--dry-run", "--set", "rewards={exact: 1.0}")
    assert end.code == 2 and re.search(expected, end.err), end.err


def test_a_dry_run_shows_config_and_plan_and_starts_nothing(cli) -> None:
    end = cli.train("--dry-run", "--name", "dry")
    assert end.code == 0 and not cli.jobs.trained and not Path("runs").exists()
    assert "steps: 30" in end.out and "folder       runs/dry" in end.out
    end = cli.train("--dry-run", "--json", "--name", "dry")
    shown = json.loads(end.out)
    assert build(Recipe, shown["config"]).env.name == "counting"
    assert shown["sources"]["env.name"] == "command line"


def test_a_resume_is_estimated_by_its_last_steps_and_its_first_evaluation(cli) -> None:
    assert cli.train("--name", "one", "--loop.steps", "2").code == 0
    with RunFolder.open("runs/one", for_writing=True) as folder:
        folder.append_metrics(3, {"time/step_s": 3.0})
        folder.save_state({"position": {"step": 3, "next_group": 0}, "first_eval_s": 8.0})
    end = cli("train", "--resume", "runs/one", "--loop.steps", "5", "--dry-run")
    assert "2 steps and evaluations of 8s about 14s; from the last" in end.out


def test_a_plan_says_how_many_held_out_tasks_there_are_and_where_it_computes(cli, monkeypatch) -> None:
    counting = cli.plugins().environment("counting")
    tasks = counting.tasks
    monkeypatch.setattr(counting, "tasks", lambda self, split, seed=0: islice(tasks(self, split, seed), 40))
    few, some = cli.train("--dry-run"), cli.train("--dry-run", "--eval.tasks", "20")
    assert "on 40 held-out tasks, 2 times each" in few.out and "on 20 held-out tasks" in some.out
    measured = cli("eval", "builtin:tiny", "--env", "counting", "--dry-run", "--logging.sinks", "[]")
    assert "tasks        40 held-out tasks, 2 times each" in measured.out
    assert "\n               40 tasks, not 128: the test split has no more\n" in measured.out
    assert "on up to 128 held-out tasks" in cli.train("--name", "one").out
    for device, said in (("cpu", "on CPU, float32"), ("cuda", "on the GPU, float32")):
        monkeypatch.setattr("agentgym.cli.recipes.pick_device", lambda wanted, section, found=device: found)
        assert said in cli.train("--loop.steps", "1").out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--env.options.startt", "1"], ["has no option 'startt'", "Did you mean 'start'?"]),
        (["--reward", "exactt"], ["exactt", "Did you mean 'exact'?"]),
        (["--rollout.top_p", "0.5"], ["rollout.top_p = 0.5"]),
        (["--rollout.max_episode_tokens", "5000"], ["rollout.max_episode_tokens is 5000"]),
    ],
)
def test_a_dry_run_refuses_what_would_fail_at_once(cli, words, expected) -> None:
    end = cli.train("--dry-run", *words)
    assert end.code == 2 and all(word in end.err for word in expected), end.err
    assert not end.out


def test_a_dry_run_without_the_hub_shows_the_plan_and_then_what_is_missing(cli, monkeypatch) -> None:
    def unreachable(*_: object) -> None:
        raise OutOfReach("the hub does not answer")

    monkeypatch.setattr("agentgym.run.gym.build_environment", unreachable)
    end = cli.train("--dry-run")
    assert end.code == 2 and "the hub does not answer" in end.err
    assert "Nothing was started" in end.out and not Path("runs").exists()


def test_a_dry_run_without_the_models_config_shows_the_plan_and_how_to_get_it(cli, monkeypatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise LocalEntryNotFoundError("no such host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    words = "--dry-run --model.path some/model --rollout.max_episode_tokens 2048 --gpus 2 --gpu-memory 80"
    end = cli.train(*words.split())
    assert end.code == 0, end.err
    assert "replica(s) on cuda, engine" in end.out and "max_model_len: 2048" in end.out
    assert "not estimated: the model 'some/model' is not whole in the cache" in end.out
    assert "`hf download some/model" in end.out
    Path("empty").mkdir()
    end = cli.train("--dry-run", "--model.path", "./empty")
    assert end.code == 2 and "the model folder 'empty' has no config.json" in end.err and not end.out


@pytest.mark.parametrize(
    ("file", "fields", "expected"),
    [
        ("config.json", {"num_hidden_layers": 10**9}, "model/config.json: num_hidden_layers is 1000000000"),
        ("tokenizer_config.json", {"eos_token": 5}, "model/tokenizer_config.json: eos_token is 5"),
        ("config.json", {"attention_bias": True}, "have no model.layers.0.self_attn.q_proj.bias"),
        ("config.json", {"model_type": "mystery"}, "'mystery', which the installed transformers does not know"),
    ],
)
def test_a_dry_run_refuses_a_model_whose_files_are_wrong(cli, file, fields, expected) -> None:
    path = Path(shutil.copytree(policy_path(), "model")) / file
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    end = cli.train("--dry-run", "--model.path", "./model")
    assert end.code == 2 and expected in end.err and not end.out
    assert len(end.err.strip().splitlines()) == 1
