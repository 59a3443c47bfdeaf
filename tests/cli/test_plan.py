"""`agentgym plan`, and the machine of a dry run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agentgym.hooks import PluginRegistry
from agentgym.planning.lengths import Turns
from agentgym.planning.rates import Rates, read_rates

APPS = Path(__file__).parents[2] / "apps"
ROWS = Path(__file__).parents[1] / "data" / "gsm8k_shaped.jsonl"
RATES = """
decode: [[1, 100], [64, 3200], [256, 12000]]
prefill: 20000
train: 9000
turns: [[[100, 400]], [[120, 900]]]
"""
LOCAL = ("--env.options.source", "jsonl", "--env.options.path", str(ROWS))


def recipe(name: str) -> str:
    return str(APPS / "grpo" / f"{name}.yaml")


@pytest.fixture
def planned(cli):
    """The command, with the plugins that are installed and a file of rates."""
    cli.plugins = PluginRegistry.discover
    Path("rates.yaml").write_text(RATES)

    def plan(*words: str):
        return cli("plan", *words, "--rates", "rates.yaml")

    return plan


def test_the_best_split_is_first_and_the_recipes_own_is_among_them(planned) -> None:
    machine = ("--gpus", "4", "--gpu-memory", "80", "--steps", "4")
    end = planned(recipe("qwen3_0.6b"), *machine, "--json")
    assert end.code == 0, end.err
    splits = json.loads(end.out)["splits"]
    speeds = [split["tokens_per_s"] for split in splits]
    assert speeds == sorted(speeds, reverse=True)
    assert [(split["trainer_procs"], split["generator_replicas"]) for split in splits if split["given"]] == [(1, 1)]
    assert {split["trainer_procs"] + split["generator_replicas"] for split in splits if not split["given"]} == {4}
    text = planned(recipe("qwen3_0.6b"), *machine, "--lengths", "100+50").out
    assert "of a full batch" in text and "controller busy" in text
    assert "the recipe's own" in text and "set it by --trainer.procs" in text and "GPU 3" in text


def test_memory_that_is_held_in_turns_is_not_added_up(planned) -> None:
    """The trainer's step and vLLM are never there together: the table says what the placement below it says."""
    files = (recipe("qwen3_4b"), str(APPS / "presets" / "gpus" / "one_in_turns.yaml"))
    fits = ("--gpus", "1", "--gpu-memory", "141", "--steps", "4")
    [split] = json.loads(planned(*files, *fits, "--json").out)["splits"]
    end = planned(*files, *fits)
    assert f"{split['most_gib']:.1f} of 141.0 GiB estimated" in end.out and split["most_gib"] < 141, end.out


def test_what_is_missing_or_wrong_is_said(planned, cli) -> None:
    Path("gpt2").mkdir()
    Path("gpt2", "config.json").write_text('{"model_type": "gpt2"}')
    assert "the model has 1024 positions" in planned(recipe("qwen3_0.6b"), "--model.path", "./gpt2").err
    Path("gpt2", "config.json").unlink()
    assert "'gpt2' has no config.json" in planned(recipe("qwen3_0.6b"), "--model.path", "./gpt2").err
    end = planned(recipe("qwen3_8b"), "--gpus", "2", "--gpu-memory", "60", "--steps", "4")
    assert end.code == 2 and "does not fit on the machine (2 GPU(s)" in end.err and "would fit" in end.err
    assert cli("plan", recipe("qwen3_0.6b")).code == 2
    assert "give --gpu-memory GIB" in planned(recipe("qwen3_0.6b"), "--gpus", "4000").err
    assert "write tokens of prompt" in planned(recipe("qwen3_0.6b"), "--lengths", "1000").err
    for memory in ("nan", "inf"):
        end = planned(recipe("qwen3_0.6b"), "--gpus", "2", "--gpu-memory", memory)
        assert end.code == 2 and f"--gpu-memory is {memory}; give the GiB of each GPU" in end.err
    Path("rates.yaml").write_text(RATES.replace("12000", "27000"))
    end = planned(recipe("qwen3_0.6b"), "--gpus", "2", "--gpu-memory", "80", "--steps", "4", "--json")
    assert end.code == 0 and "rates.yaml: decode with 256 sequences is 27,000 tokens/s" in end.err
    assert len(json.loads(end.out)["splits"]) == 1
    Path("rates.yaml").write_text(RATES.replace("12000", ".nan"))
    assert "decode with 256 sequences is nan; give a finite number" in planned(recipe("qwen3_0.6b")).err
    Path("rates.yaml").write_text(RATES.replace("9000", "fast"))
    assert "rates.yaml: train is 'fast' (str)" in planned(recipe("qwen3_0.6b")).err


def test_lengths_are_cut_as_the_recipe_cuts_them_and_refused_where_nothing_could_be_sampled(planned) -> None:
    """rollout.max_turn_tokens is 1536, max_episode_tokens, max_model_len and seq_len are 2048."""
    few = ("--gpus", "2", "--gpu-memory", "80", "--steps", "4", "--json")

    def step_s(end) -> float:
        assert end.code == 0, end.err
        return json.loads(end.out)["splits"][0]["step_s"]

    cut = planned(recipe("qwen3_0.6b"), *few, "--lengths", "200+99999")
    assert "--lengths 200+99999 is cut by the recipe to 200+1536" in cut.err and "max_episode_tokens 2048" in cut.err
    whole = planned(recipe("qwen3_0.6b"), *few, "--lengths", "200+1536")
    assert whole.err == "" and step_s(cut) == step_s(whole)
    assert "is cut by the recipe to 1000+1048" in planned(recipe("qwen3_0.6b"), *few, "--lengths", "1000+1500").err
    end = planned(recipe("qwen3_0.6b"), *few, "--lengths", "2048+10")
    assert end.code == 2 and "a prompt of 2048 tokens leaves none to sample" in end.err, end.err
    end = planned(recipe("qwen3_0.6b"), *few, "--generator.max_model_len", "1024", "--lengths", "200+1500")
    assert end.code == 2 and "max_episode_tokens is 2048 but generator.max_model_len is only 1024" in end.err, end.err
    Path("rates.yaml").write_text(RATES.replace("[120, 900]", "[120, 9000]"))
    assert "episodes of rates.yaml are cut by the recipe: " in planned(recipe("qwen3_0.6b"), *few).err


@dataclass
class MeasuringJobs:
    """Says that it measured at the middle of the completions. asked: the lengths of each measurement."""

    asked: list[tuple[Turns, ...] | None] = field(default_factory=list)

    async def measure(self, recipe, folder, reporter, registry, lengths) -> Rates:
        self.asked.append(lengths)
        turns = lengths or (((60, 40),),)
        return Rates(decode=((1, 100.0),), prefill=1e5, train=1e4, turns=turns, context=250 if lengths else 80)


def test_rates_are_measured_at_the_lengths_that_are_asked_for_and_say_at_which_context(cli) -> None:
    """The measurement itself is in tests/run/test_measuring.py."""
    cli.plugins, cli.jobs = PluginRegistry.discover, MeasuringJobs()
    limits = ("--rollout.max_episode_tokens", "400", "--rollout.max_turn_tokens", "300")
    small = (recipe("math"), "--steps", "4", "--loop.groups_per_step", "2", *limits)
    end = cli("plan", *small, "--measure", "--lengths", "100+500", "--save-rates", "rates.yaml")
    assert end.code == 0 and cli.jobs.asked == [(((100, 300),),)], end.err
    assert "at a context of 250 tokens" in end.out and "cut by the recipe to 100+300" in end.err
    saved = read_rates("rates.yaml")
    assert (saved.context, saved.turns) == (250, (((100, 300),),))
    assert cli("plan", *small, "--rates", "rates.yaml").err == ""
    elsewhere = cli("plan", *small, "--rates", "rates.yaml", "--lengths", "50+20").err
    assert "measured at a context of 250 tokens" in elsewhere and "sampled at 60 in the mean" in elsewhere
    assert cli("plan", *small, "--measure").code == 0 and cli.jobs.asked[1] is None


def test_rates_of_another_policy_are_used_and_said_to_be(planned) -> None:
    small = (recipe("math"), "--steps", "4", "--loop.groups_per_step", "2")
    Path("rates.yaml").write_text(RATES.replace("400", "40").replace("900", "40") + "policy: builtin:tiny\n")
    assert planned(*small).err == ""
    adapters = planned(*small, "--trainer.lora.rank", "8").err
    assert "measured with builtin:tiny, and planned is builtin:tiny, LoRA of rank 8: " in adapters, adapters
    Path("rates.yaml").write_text(RATES.replace("400", "40").replace("900", "40") + "policy: Qwen/Qwen3-1.7B\n")
    assert "measured with Qwen/Qwen3-1.7B, and planned is builtin:tiny: " in planned(*small).err


def test_the_rates_that_the_page_shows_are_plausible(tmp_path: Path) -> None:
    page = (APPS.parent / "docs" / "placement.md").read_text()
    shown = page.split("<!-- file: rates.yaml -->")[1].split("```")[1].removeprefix("yaml")
    (tmp_path / "shown.yaml").write_text(shown)
    rates = read_rates(str(tmp_path / "shown.yaml"))
    assert len(rates.decode) == 3 and not list(rates.doubts())


def test_splits_that_do_not_fit_are_shown_and_marked_where_the_memory_is_not_checked(planned) -> None:
    """On GPUs of 58 GiB the 1.7B takes two trainer processes: for one, 60.7 are estimated."""
    given = (recipe("qwen3_1.7b"), "--gpus", "4", "--steps", "4", "--generator.engine.gpu_memory_utilization", "0.5")
    given += ("--loop.groups_per_step", "2")

    def splits(gib: str, *more: str) -> dict[tuple[int, int], bool]:
        end = planned(*given, "--gpu-memory", gib, *more, "--json")
        assert end.code == 0, end.err
        found = json.loads(end.out)["splits"]
        return {(one["trainer_procs"], one["generator_replicas"]): not one["problems"] for one in found}

    checked = splits("58")
    assert checked == {(2, 2): True, (3, 1): True}
    off = ("--trainer.check_memory", "false")
    assert splits("58", *off) == {(2, 2): True, (3, 1): True, (1, 1): False, (1, 3): False}
    shown = planned(*given, "--gpu-memory", "58", *off).out
    assert "the recipe's own, does not fit" in shown and "the fastest that fit:" in shown, shown
    assert planned(*given, "--gpu-memory", "20").code == 2
    none = planned(*given, "--gpu-memory", "20", *off)
    assert none.code == 0 and "none of which fits" in none.out
    assert "unchecked    trainer.check_memory is false, and GPU 0 has 20.0 GiB" in none.out, none.out


def test_a_plan_for_hundreds_of_gpus_is_a_page_and_says_what_the_limit_is(planned) -> None:
    given = (recipe("qwen3_1.7b"), "--gpus", "512", "--gpu-memory", "140", "--loop.groups_per_step", "16")
    end = planned(*given, "--steps", "4")
    assert end.code == 0 and len(end.out.splitlines()) < 40, end.out
    assert "140.0 GiB estimated, each" in end.out and "GPU 511" not in end.out
    assert "the limit: the generators; twice as fast" in end.out and "waits for its longest episodes" in end.out
    Path("rates.yaml").write_text(RATES + "host_s: 0.5\n")
    limit = json.loads(planned(*given, "--steps", "4", "--json").out)["limit"]
    assert limit["part"] == "the controller" and limit["twice_as_fast_s"]["the controller"] < 0.8 * limit["step_s"]


def test_a_dry_run_shows_who_sits_where_and_refuses_what_does_not_fit(cli) -> None:
    cli.plugins = PluginRegistry.discover
    given = ("train", "--config", recipe("qwen3_1.7b"), "--dry-run", *LOCAL)
    end = cli(*given, "--gpus", "2", "--gpu-memory", "80")
    assert end.code == 0, end.err
    assert "trainer 0" in end.out and "GPU 1        69.2 of 80.0 GiB estimated" in end.out
    refused = cli(*given, "--gpus", "1", "--gpu-memory", "24")
    assert refused.code == 2 and "this does not fit" in refused.err and "would fit" in refused.err
    assert "give --dry-run too" in cli("train", recipe("qwen3_1.7b"), "--gpus", "2").err
    fine_tuned = cli(
        "sft", recipe("qwen3_1.7b").replace("grpo", "sft"), "--dry-run", "--gpus", "1", "--gpu-memory", "80"
    )
    assert fine_tuned.code == 0 and "weights 6.4, gradients 6.4, optimizer 12.8" in fine_tuned.out
