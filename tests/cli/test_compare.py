"""`agentgym compare`: what is saved is used, what is missing is played, and only the same is compared."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from agentgym.errors import UserError
from agentgym.evals.compare import Play, Saved, compare, compare_all
from agentgym.evals.differing import differing, mismatches
from agentgym.evals.statistics import mcnemar, paired_difference, run_difference, student_quantile
from agentgym.models.tiny import policy_path
from agentgym.runs.folder import RunFolder, RunStatus


def save_weights(checkpoint: Path) -> None:
    (checkpoint / "hf").mkdir(parents=True)
    shutil.copy(policy_path() / "config.json", checkpoint)  # of a family: transformers builds no model to count it


@pytest.fixture
def runs(cli, made_once) -> list[str]:
    """Two runs, whose configs differ in the learning rate. a solves tasks 0 to 8, b 2 to 13."""
    cli.jobs.solves = lambda model, task, sample: 2 <= task < 14 if "runs/b" in model else task < 9

    def make() -> None:
        for name, rate in (("a", "1e-4"), ("b", "2e-4")):
            assert cli.train("--name", name, "--loop.steps", "5", "--optimizer.lr", rate).code == 0
            save_weights(RunFolder.open(f"runs/{name}").checkpoint_dir(5))

    made_once(make)
    return ["runs/a", "runs/b"]


def last_line(end) -> dict:
    assert end.code == 0, end.err
    return json.loads(end.out.splitlines()[-1])


def test_two_runs_are_played_once_and_compared_task_by_task(cli, runs) -> None:
    end = cli("compare", *runs, "--samples", "1")
    assert end.code == 0, end.err
    assert "20 tasks, 20 pairs of episodes. Second minus first:" in end.out
    assert "success: +0.150 [" in end.out and "reward: +0.150 [" in end.out
    assert "won 5, lost 2: McNemar's exact test over tasks gives p = 0.453" in end.out
    assert "5 tasks won" in end.out and "count-13  0/1    1/1     eval-0013-00" in end.out
    assert "2 tasks lost" in end.out and "count-1  1/1    0/1     eval-0001-00" in end.out
    assert re.search(r"optimizer.lr +0.0001 +0.0002", end.out) and "model.path" not in end.out
    [shown] = {line for line in end.out.splitlines() if "read one" in line and "evals/b-step-000005" in line}
    words = shown.partition("agentgym ")[2].replace("EPISODE", "eval-0013-00").split()
    assert "what follows 13?" in cli(*words, "--json").out

    again = last_line(cli("compare", *runs, "--samples", "1", "--json"))
    assert len(cli.jobs.evaluated) == 2  # nothing was played again
    expected = paired_difference([[n < 9] for n in range(20)], [[2 <= n < 14] for n in range(20)], shares=True)
    assert again["success"]["smallest"] == expected.smallest and again["success"]["chance"] == mcnemar(5, 2)
    assert [one["task_id"] for one in again["lost"]] == ["count-0", "count-1"]
    assert [one["field"] for one in again["differing"]] == ["policy", "optimizer.lr"]
    assert again["differing"][1]["values"] == ["0.0001", "0.0002"]
    (Path("runs/b/checkpoints/step-000005") / "model.safetensors").write_bytes(b"trained again")
    assert cli("compare", *runs, "--samples", "1").code == 0 and len(cli.jobs.evaluated) == 3


def test_episodes_that_were_cut_by_time_are_no_zeros_and_the_limit_is_named(cli, runs) -> None:
    cli.jobs.cuts = 8
    end = cli("compare", *runs, "--samples", "1")
    assert end.code == 0 and "12 tasks, 12 pairs of episodes; 16 episodes have no partner" in end.out
    assert end.err.count("CUT BY TIME: 8 of 20") == 2 and "--rollout.generate_timeout_s 240" in end.err
    assert last_line(cli("compare", *runs, "--samples", "1", "--json"))["first"]["num_cut"] == 8
    cli.jobs.cuts = 20
    end = cli("compare", *runs, "--samples", "1", "--again")
    assert end.code == 2 and end.err.count("CUT BY TIME: 20 of 20") == 2 and "0 tasks have counted" in end.err


def test_the_side_that_is_missing_is_played_with_the_tasks_of_the_one_that_is_saved(cli, runs) -> None:
    assert cli("eval", "runs/b", "--tasks", "12", "--samples", "3", "--seed", "4", "--name", "saved").code == 0
    end = cli("compare", "runs/a", "evals/saved", "--dry-run")
    assert "runs/a: would be played, up to 12 held-out tasks of counting, 3 times each" in end.out
    assert "evals/saved: saved in evals/saved, step 5" in end.out
    found = last_line(cli("compare", "builtin:tiny", "evals/saved", "--json"))
    recipe = cli.jobs.evaluated[-1]
    assert (recipe.eval.tasks, recipe.eval.samples_per_task, recipe.eval.seed) == (12, 3, 4)
    assert recipe.model.path == "builtin:tiny" and recipe.env.name == "counting"
    assert (found["num_pairs"], found["num_unpaired"], found["first"]["success"]) == (36, 0, 0.75)
    end = cli("compare", "runs/a", "evals/saved", "--tasks", "5")
    assert end.code == 2 and "is taken as it is" in end.err


def test_several_sides_are_compared_with_one_and_corrected_for_their_number(cli, runs) -> None:
    """Of 20 tasks the base solves 0 to 8, b 2 to 13, c all."""
    cli.jobs.solves = lambda model, task, sample: (
        2 <= task < 14 if "runs/b" in model else True if "runs/c" in model else task < 9
    )
    assert cli.train("--name", "c", "--loop.steps", "5", "--optimizer.lr", "1e-4").code == 0
    save_weights(RunFolder.open("runs/c").checkpoint_dir(5))
    words = ("compare", "runs/b", "runs/a", "runs/c", "--against", "a", "--samples", "1")
    end = cli(*words)
    assert end.code == 0, end.err
    rows = {line.split()[0]: line.split() for line in end.out.splitlines() if re.match(r"runs/\w +[+-]", line)}
    assert "Each minus runs/a, corrected for 2 comparisons" in end.out
    assert rows["runs/b"][-5:] == ["not", "clear", "5", "2", "13"] and rows["runs/c"][-4:] == ["better", "11", "0", "9"]
    found = last_line(cli(*words, "--json"))
    b, c = found["comparisons"]
    assert found["against"] == "runs/a" and [one["name"] for one in found["sides"]] == ["runs/a", "runs/b", "runs/c"]
    sides = [[[2 <= n < 14] for n in range(20)], [[True]] * 20]
    alone = [paired_difference([[n < 9] for n in range(20)], side, 0.95**0.5, shares=True) for side in sides]
    assert [(one["success"]["low"], one["success"]["high"]) for one in (b, c)] == [(x.low, x.high) for x in alone]
    assert [one["success"]["chance"] for one in (b, c)] == [mcnemar(5, 2), 2 * mcnemar(11, 0)]  # Holm
    fields = {one["field"]: one["values"] for one in found["differing"]}
    assert next(iter(fields)) == "policy" and fields["optimizer.lr"] == ["0.0001", "0.0002", "0.0001"]
    for given, said in (("runs/b runs/a --against runs/d", "is none of the sides"), ("runs/b runs/b", "given twice")):
        end = cli("compare", *given.split())
        assert end.code == 2 and said in end.err


@pytest.mark.hostile
def test_a_false_verdict_among_several_comparisons_is_rarer_than_one_in_twenty(cli, runs) -> None:
    """The family-wise error of a comparison of three policies that are alike, on tasks of any difficulty."""
    assert cli("eval", "runs/a", "--name", "one").code == 0
    one, random, tasks = Saved.load(RunFolder.open("evals/one"), 5, "one"), Random(5), 60
    ended = [Play(episode_id="", counted=True, success=won, reward=None) for won in (False, True)]
    wrong = {"interval": 0, "p": 0, "uncorrected": 0}
    for _ in range(2000):
        difficulty = [random.random() for _ in range(tasks)]
        alike = [{str(n): {0: ended[random.random() < p]} for n, p in enumerate(difficulty)} for _ in range(3)]
        base, *others = (replace(one, plays=plays) for plays in alike)
        found = [made.success for made in compare_all(base, others)]
        wrong["interval"] += any(each.is_clear for each in found)
        wrong["p"] += any(each.chance <= 0.05 for each in found)
        wrong["uncorrected"] += any(
            abs(each.mean) * tasks / (tasks + 2) > student_quantile(0.95, tasks - 1) * each.standard_error
            for each in found
        )
    assert wrong["interval"] <= 100 and wrong["p"] <= 100 < wrong["uncorrected"], wrong


def test_runs_of_several_seeds_are_compared_with_the_run_as_the_unit(cli) -> None:
    """Of 20 tasks, a solves 9 in each run; b 14, 10 and 12: over tasks pooled that is clear, over runs it is not."""
    solved = {"b0": 14, "b1": 10, "b2": 12}
    cli.jobs.solves = lambda model, task, sample: task < next((n for name, n in solved.items() if name in model), 9)
    for name in ("a0", "a1", "a2", *solved, "b9"):
        with RunFolder.create("runs", name) as folder:
            folder.save_config({"env": {"name": "counting"}, "loop": {"seed": int(name[1])}, "logging": {"sinks": []}})
            save_weights(folder.checkpoint_dir(5))
            folder.set_status(RunStatus.DONE)
    words = ("compare", "runs/a0,runs/a1,runs/a2", "runs/b2,runs/b0,runs/b1", "--samples", "1")
    end = cli(*words)
    assert end.code == 0, end.err
    moves = [0.25, 0.05, 0.15]  # of the seeds 0, 1 and 2
    wanted = run_difference(moves, resolution=0.05)
    assert f"success: +0.150 [{wanted.low:+.3f}, {wanted.high:+.3f}]" in end.out
    assert "3 pairs of runs" in end.out and "zero lies inside: no clear difference" in end.out
    found = last_line(cli(*words, "--json"))
    assert found["success"]["num_runs"] == 3 and found["success"]["mean"] == pytest.approx(0.15)
    assert [pair["seed"] for pair in found["pairs"]] == [0, 1, 2]
    assert [pair["success"]["mean"] for pair in found["pairs"]] == pytest.approx(moves)
    several = ("compare", "builtin:tiny", *words[1:3], "--samples", "1")
    end = cli(*several)
    assert re.search(r"runs/b2,runs/b0,runs/b1 +\+0.150 +\[.* not clear", end.out), end.out + end.err
    same, other = last_line(cli(*several, "--json"))["comparisons"]
    both = run_difference(moves, 0.95**0.5, resolution=0.05)
    assert (other["success"]["low"], other["success"]["chance"]) == (both.low, 2 * both.chance)
    assert same["success"]["mean"] == 0.0
    one = cli("compare", "runs/a0", "runs/b0", "--samples", "1")
    assert "One run on each side" in one.out and "runs/a0,..." in one.out
    for second, said in (("runs/b0", "3 and 1"), ("runs/b0,runs/b1,runs/b1", "runs/b1 twice")):
        end = cli("compare", words[1], second, "--samples", "1")
        assert end.code == 2 and said in end.err
    end = cli("compare", words[1], "runs/b0,runs/b1,runs/b9", "--samples", "1")
    assert end.code == 2 and "seeds 0, 1, 2 and 0, 1, 9" in end.err


def test_an_interrupted_comparison_goes_on(cli, runs) -> None:
    cli.jobs.breaks_after = 7
    assert cli("compare", *runs).code == 1
    assert len(list(Path("evals").iterdir())) == 1
    end = cli("compare", *runs)
    assert end.code == 0 and "7 were played before" in end.out and len(list(Path("evals").iterdir())) == 2


def test_an_unfinished_evaluation_is_not_compared(cli, runs) -> None:
    cli.jobs.breaks_after = 7
    cli("eval", "runs/a", "--name", "cut")
    end = cli("compare", "evals/cut", "runs/b")
    assert end.code == 2 and "agentgym eval --resume evals/cut" in end.err
    assert cli("compare", "runs/a", "runs/c").code == 2
    shutil.rmtree("runs/b/checkpoints")
    assert "run 'runs/b' has no checkpoint yet" in cli("compare", "runs/a", "runs/b").err


def test_evaluations_of_other_tasks_are_refused_unless_that_is_allowed(cli, runs) -> None:
    for name, tasks, seed in (("few", "10", "1"), ("many", "20", "1"), ("others", "20", "2")):
        assert cli("eval", "runs/a", "--tasks", tasks, "--seed", seed, "--name", name).code == 0
    end = cli("compare", "evals/few", "evals/many")
    assert end.code == 2
    assert "tasks: 10 are in both, 0 in the first alone, 10 in the second alone (count-10, " in end.err
    end = cli("compare", "evals/few", "evals/many", "--allow-mismatch")
    assert end.code == 0 and "10 tasks, 20 pairs of episodes; 20 episodes have no partner" in end.out
    end = cli("compare", "evals/many", "evals/others")
    assert end.code == 2 and "eval.seed is 1 and 2" in end.err
    assert last_line(cli("compare", "evals/many", "evals/others", "--allow-mismatch", "--json"))["num_pairs"] == 40


def test_sides_that_share_no_task_are_refused_with_the_reason(cli, runs) -> None:
    for name, more in (("one", ()), ("later", ("--env.options", '{"start": 50}'))):
        assert cli("eval", "runs/a", "--name", name, "--samples", "1", *more).code == 0
    end = cli("compare", "evals/one", "evals/later", "--allow-mismatch")
    assert end.code == 2 and "share no task" in end.err and "env.options.start: - and 50" in end.err, end.err
    end = cli("compare", "runs/a", "runs/a/checkpoints/step-000005", "--samples", "1")
    assert end.code == 2 and "are the same evaluation: evals/one, step 5" in end.err
    file = RunFolder.open("evals/one").episode_file(5, evaluation=True)
    file.write_bytes(file.read_bytes()[:-40])
    end = cli("compare", "evals/one", "evals/later")
    assert end.code == 2 and "'evals/one' could not be read" in end.err and "runs audit evals/one" in end.err


def test_the_environments_own_rewards_are_the_same_as_weights_that_explain_them(cli, runs) -> None:
    cli("eval", "runs/a", "--name", "one")
    one = Saved.load(RunFolder.open("evals/one"), 5, "one")

    parts = {"exact": 0.5, "short": 1.0}

    def scored(weights: dict[str, float], reward: float) -> Saved:
        play = Play(
            episode_id="", counted=True, success=True, reward=reward, scores=parts if weights else {**parts, "turns": 3}
        )
        return replace(one, config={"rewards": weights}, plays={"a": {0: play}, "b": {0: play}})

    own, same, other = scored({}, 0.6), scored({"exact": 1, "short": 0.1}, 0.6), scored({"exact": 1, "short": 1}, 1.5)
    assert compare(own, same).reward is not None
    for a, b in ((own, other), (same, other)):
        found = compare(a, b)
        assert found.reward is None and found.success is not None and found.other_rewards.endswith("exact=1, short=1")
    with pytest.raises(UserError, match="success is unknown and the rewards are not the same"):
        compare(
            *(replace(x, plays={t: {0: replace(p[0], success=None)} for t, p in x.plays.items()}) for x in (own, other))
        )


def test_what_an_older_version_of_the_environment_played_is_played_again(cli, runs) -> None:
    assert cli("compare", *runs).code == 0
    [record] = Path("evals").glob("a-*/evals/step-000005.json")
    record.write_text(record.read_text().replace('"version":1', '"version":0'))
    assert cli("compare", *runs).code == 0 and len(cli.jobs.evaluated) == 3
    assert cli("compare", *runs, "--again").code == 0 and len(cli.jobs.evaluated) == 5
    cli("eval", "runs/a", "--name", "again")
    same = cli("compare", "evals/again", str(record.parents[1]), "--allow-mismatch").out
    assert "reward: the same in every task" in same  # an interval of no width misleads


def test_what_is_not_the_same_is_named(cli, runs) -> None:
    assert cli("eval", "runs/a", "--name", "one").code == 0
    one = Saved.load(RunFolder.open("evals/one"), 5, "one")
    assert mismatches(one, one) == []
    newer = replace(one, setup=replace(one.setup, version=2), digests={**one.digests, "count-3": "changed"})
    assert mismatches(one, newer) == [
        "versions of counting: 1 and 2",
        "data: 1 tasks have another prompt or answer (count-3)",
    ]
    other = replace(one, setup=replace(one.setup, environment="math"), digests={}, plays={})
    assert mismatches(one, other)[0] == "environments: counting and math"
    with pytest.raises(UserError, match="0 tasks have counted episodes on both sides"):
        compare(one, other)


def test_pairs_are_episodes_with_the_same_seed_that_both_could_count(cli, runs) -> None:
    cli("eval", "runs/a", "--samples", "2", "--name", "two")
    cli("eval", "runs/b", "--samples", "3", "--name", "three")
    a, b = (Saved.load(RunFolder.open(f"evals/{name}"), 5, name) for name in ("two", "three"))
    broken = next(iter(b.plays["count-9"]))
    b.plays["count-9"][broken] = replace(b.plays["count-9"][broken], success=None, counted=False)
    found = compare(a, b)
    assert found.num_pairs == 39 and found.num_unpaired == 22
    by_hand = [(2 <= n < 14) - (n < 9) for n in range(20)]
    assert found.success.mean == pytest.approx(sum(by_hand) / 20)
    assert [one.task_id for one in found.won] == [f"count-{n}" for n in range(9, 14)]


def test_the_evaluation_at_the_end_of_a_run_is_used(cli, runs) -> None:
    cli("eval", "runs/a", "--name", "theirs")
    target = RunFolder.open("runs/a").evaluation_file(5, "").parent
    Path("evals/theirs/evals").rename(target)  # as the run itself saves them
    with RunFolder.open("evals/theirs", for_writing=True) as emptied:
        emptied.set_status(RunStatus.DONE)
    end = cli("compare", "runs/a", "runs/b", "--dry-run")
    assert "runs/a: saved in runs/a, step 5" in end.out and "runs/b: would be played" in end.out


@pytest.mark.parametrize("configured", ["12", "18"])
def test_as_many_tasks_as_a_run_measured_itself_are_played_by_the_other_side(cli, runs, configured: str) -> None:
    """As `agentgym eval RUN --every-checkpoint --tasks 15` saves them."""
    assert cli.train("--name", "c", "--loop.steps", "5", "--eval.tasks", configured).code == 0
    save_weights(RunFolder.open("runs/c").checkpoint_dir(5))
    cli("eval", "runs/c", "--name", "theirs", "--tasks", "15")
    shutil.copytree("evals/theirs/evals", RunFolder.open("runs/c").evaluation_file(5, "").parent)
    shutil.rmtree("evals/theirs")

    def planned(*words: str) -> str:
        return cli("compare", "runs/c", "runs/b", "--dry-run", *words).out

    assert "runs/c: saved in runs/c, step 5" in planned() and "runs/b: would be played, up to 15 held" in planned()
    assert "runs/c: saved in runs/c" in planned("--tasks", "15") and "runs/c: would" in planned("--tasks", "10")


@pytest.mark.parametrize("order", [1, -1])
def test_of_weights_that_no_run_made_only_what_they_play_is_compared(cli, runs, order: int) -> None:
    cli("eval", "runs/a", "--name", "one")
    one = Saved.load(RunFolder.open("evals/one"), 5, "one")
    weights = "runs/a/checkpoints/step-000005"
    ours = {"model": {"path": weights}, "optimizer": {"lr": 5e-4}, "rollout": {"max_turns": 2}}
    more = {**ours, "optimizer": {"lr": 1e-3}}
    served = {"model": {"path": "openai:m"}, "optimizer": {"lr": 1e-6}, "rollout": {"max_turns": 1}}
    sides = [replace(one, config=config) for config in (ours, served)]
    assert [row.field for row in differing(sides[::order])] == ["rollout.max_turns"]
    sides.append(replace(one, config=more))  # two that runs made
    found = {row.field: row.values for row in differing(sides[::order])}
    assert found["optimizer.lr"] == ("0.0005", "-", "0.001")[::order]


def test_training_settings_are_no_difference_to_weights_that_no_run_made(cli, runs) -> None:
    words = ("--env", "counting", "--samples", "1", "--loop.steps", "3", "--set", "logging.sinks=[]")
    assert cli("eval", "builtin:tiny", "--name", "saved", *words).code == 0
    found = last_line(cli("compare", "evals/saved", runs[0], "--json"))
    assert [one["field"] for one in found["differing"]] == ["policy", "step"]
