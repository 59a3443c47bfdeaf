"""Task folders as they are read: values, refusals by name, data sets, packed files, and reward files."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from harbor_comparing import disagreement, question

from agentgym.errors import UserError
from agentgym_envs.harbor.datasets import chosen, task_paths
from agentgym_envs.harbor.environment import Harbor, _combined
from agentgym_envs.harbor.files import check_links, pack
from agentgym_envs.harbor.folder import read_folder
from agentgym_envs.harbor.origin import solution_commands
from agentgym_envs.harbor.rewards import NoReward, read_rewards
from agentgym_envs.harbor.task_config import parse_task

RECORDED = Path(__file__).parents[1] / "data" / "harbor_answers.jsonl"  # of Harbor 0.26.0, by harbor_reference.py


def make(path: Path, toml: str = "", **files: str) -> Path:
    """A task folder; names of files have `__` for `/`."""
    texts = {"instruction.md": "Do it.", "environment/Dockerfile": "FROM x", "tests/test.sh": "true", "task.toml": toml}
    texts |= {name.replace("__", "/"): text for name, text in files.items()}
    for name, text in texts.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


def test_recorded_files_are_read_as_harbor_reads_them() -> None:
    recorded = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    assert len(recorded) > 30
    for one in recorded:
        assert not (said := disagreement(question(one["kind"], one["seed"]), one["answer"])), said


@pytest.mark.parametrize(
    ("toml", "named"),
    [
        ("[environment]\nos = 'windows'", "environment.os is 'windows'"),
        ("[environment]\ngpus = 2", "environment.gpus is 2"),
        ("[environment]\ntpu = {type = 'v4', topology = '2x2'}", "environment.tpu"),
        ("[environment]\nmemory = '2G'\nmemory_mb = 5", "environment.memory is '2G'; environment.memory_mb says 5"),
        ("[agent]\nuser = 1.5", "agent.user is 1.5; give a user's name or number"),
        ("[agent]\nallowed_hosts = ['x.org']", "agent.allowed_hosts is ['x.org']; it needs agent.network_mode"),
        ("[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['10.0.0.0/8']", "ranges of addresses"),
        ("[verifier]\nenvironment_mode = 'seperate'", "Did you mean 'separate'?"),
        ("[verifier]\ntimeout_sec = nan", "verifier.timeout_sec is nan; give a finite number"),
        (
            "[[verifier.collect]]\ncommand = 'x'\nservice = 'db'",
            "verifier.collect[0].service is 'db'; tasks of several",
        ),
        ("artifacts = ['/a/../b']", "artifacts[0].source is '/a/../b'"),
        ("[[steps]]\nname = 'A'\n[[steps]]\nname = 'a'", "steps[1].name is 'a'; another step has it"),
        ("[[steps]]\nagent = {}", "steps[0] has no 'name'"),
        ("a = ", "it is not valid TOML"),
    ],
)
def test_what_is_wrong_or_not_supported_is_refused_by_its_key(toml: str, named: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_task(toml)
    assert named in str(refused.value)


def test_unknown_keys_are_ignored_and_reported() -> None:
    config = parse_task(
        "x = 1\n[metadata]\nany = 2\n[agent]\ntimeout = 5\n[environment.healthcheck]\ncommand = 'true'\ny = 1"
    )
    assert config.unknown == ("agent.timeout", "environment.healthcheck.y", "x")


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (
            {"environment__docker-compose.yaml": "services: {}"},
            "environment/docker-compose.yaml: tasks of several containers",
        ),
        ({"trajectory.json": "{}"}, "trajectory.json: an earlier conversation is not supported"),
        ({"task.toml": "[[steps]]\nname = 'one'"}, "steps/one/instruction.md is missing"),
        ({"task.toml": "[environment]\nenv = {A = '${NO_SUCH_VARIABLE}'}"}, "the variable NO_SUCH_VARIABLE is not set"),
        (
            {"task.toml": "[[environment.mcp_servers]]\nname = 's'\nurl = 'http://x'"},
            "environment.mcp_servers has 's' with transport 'sse', which is not supported",
        ),
    ],
)
def test_a_folder_that_cannot_be_played_is_refused_with_the_file(
    tmp_path: Path, files: dict[str, str], named: str
) -> None:
    with pytest.raises(UserError) as refused:
        read_folder(make(tmp_path / "t", **files), mode="snapshot", memory_mib=512)
    assert named in str(refused.value) and str(tmp_path / "t") in str(refused.value)


def test_a_folder_without_tests_or_image_is_refused(tmp_path: Path) -> None:
    for missing in ("tests/test.sh", "environment/Dockerfile", "instruction.md", "task.toml"):
        folder = make(tmp_path / missing.replace("/", "-"))
        (folder / missing).unlink()
        with pytest.raises(UserError, match=missing.replace(".", r"\.")):
            read_folder(folder, mode="snapshot", memory_mib=512)


def test_broken_folders_end_the_command_or_are_left_out_by_name(tmp_path: Path) -> None:
    make(tmp_path / "good"), make(tmp_path / "bad", "[environment]\nos = 'windows'")
    with pytest.raises(
        UserError, match=r"1 of 2 tasks can't be played, the first is bad: .*environment.os is 'windows'"
    ):
        Harbor(path=str(tmp_path))
    environment = Harbor(path=str(tmp_path), skip_broken=True)
    assert [task.task_id for task in environment.tasks("test")] == ["good"]
    assert environment.split_note("test").startswith("1 of 2 tasks are left out: bad: ")


def test_splits_are_shares_of_the_folder_and_training_has_an_order_of_its_seed(tmp_path: Path) -> None:
    for number in range(30):
        make(tmp_path / f"t{number}")
    environment = Harbor(path=str(tmp_path), test_share=0.4)
    test, train = ([task.task_id for task in environment.tasks(split)] for split in ("test", "train"))
    assert sorted([*test, *train]) == sorted(f"t{number}" for number in range(30)) and 4 < len(test) < 20
    assert sorted(train) == sorted(again := [task.task_id for task in environment.tasks("train", 1)]) != again != train
    with pytest.raises(UserError, match=r"--env\.options\.test_share"):
        next(Harbor(path=str(tmp_path)).tasks("train"))


def test_what_a_step_does_not_say_is_the_tasks_and_a_separate_verifier_carries(tmp_path: Path) -> None:
    toml = """
artifacts = ["/out"]
[environment]
docker_image = "base:1"
network_mode = "no-network"
[agent]
timeout_sec = 50
user = "worker"
[verifier]
timeout_sec = 70
env = {A = "${HOME_OF_NOBODY:-b}"}
[[steps]]
name = "one"
min_reward = 0.5
[[steps]]
name = "two"
agent = {timeout_sec = 5}
verifier = {environment = {docker_image = "judge:1"}}
"""
    folder = make(tmp_path / "t", toml)
    for name in ("one", "two"):
        make(folder / "steps" / name, solution__solve_sh="x")
    (folder / "steps/one/instruction.md").write_text("<!-- canary GUID -->\n\nFirst.")
    task = read_folder(folder, mode="snapshot", memory_mib=777)
    one, two = task.phases
    assert (
        one.instruction == "First." and one.least == {"reward": 0.5} and (one.mode, two.mode) == ("snapshot", "carry")
    )
    assert (one.agent.timeout_s, two.agent.timeout_s, two.agent.user) == (50.0, 5.0, "worker")
    assert two.judge is not None and two.judge.image == "judge:1" and two.tests == () and len(one.tests) == 2
    assert (task.spec.image, task.spec.network, task.spec.memory_mib, task.spec.user) == ("base:1", (), 777, "worker")
    assert [artifact.source for artifact in one.artifacts] == ["/logs/artifacts", "/out"]


def test_data_sets_list_their_tasks(tmp_path: Path) -> None:
    make(tmp_path / "sets/a", "[task]\nname = 'org/first'"), make(tmp_path / "sets/deep/b")
    assert [path.name for path in task_paths(tmp_path / "sets")] == ["a", "b"]
    digest = f"sha256:{'0' * 64}"
    listed = "".join(f"[[tasks]]\nname = '{name}'\ndigest = '{digest}'\n" for name in ("org/b", "org/first"))
    (tmp_path / "sets/dataset.toml").write_text(listed)
    assert [path.name for path in task_paths(tmp_path / "sets")] == ["b", "a"]
    registry = tmp_path / "registry.json"
    entry = {"name": "x", "version": "1", "description": "", "tasks": [{"name": "a", "path": "sets/a"}]}
    elsewhere = {**entry, "version": "2", "tasks": [{"name": "z", "path": "z", "git_url": "https://g/z"}]}
    registry.write_text(json.dumps([entry, elsewhere]))
    assert [path.name for path in task_paths(registry, dataset="x@1")] == ["a"]
    with pytest.raises(UserError, match="several data sets"):
        task_paths(registry)
    with pytest.raises(UserError, match=r"'z'.*https://g/z: clone that beside the file"):
        task_paths(registry, dataset="x@2")
    with pytest.raises(UserError, match=r"'c\*'.*which no task matches"):
        chosen(task_paths(tmp_path / "sets"), ["a", "c*"])


def test_packed_files_follow_the_ignore_rules_and_no_link_leaves_the_task(tmp_path: Path) -> None:
    folder = make(tmp_path / "t", tests__keep="k", tests__a__b__x_log="x", tests__a__note="n", tests__build__o="o")
    (folder / "tests/a/b/x_log").rename(folder / "tests/a/b/x.log")
    (folder / "tests/.harborignore").write_text("# rules\n*.log\nbuild/\n/a/n?te\n!keep\n")
    make(tmp_path / "more", tests__keep="later")
    packed = pack(folder, folder / "tests", tmp_path / "more/tests", first="test.sh")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert archive.getnames() == ["a", "a/b", "keep", "test.sh"]
        assert archive.getmember("test.sh").mode & 0o111 and not archive.getmember("keep").mode & 0o111
        kept = archive.extractfile("keep")
        assert kept is not None and kept.read() == b"later"
    (folder / "tests/link").symlink_to("../../../outside")
    with pytest.raises(UserError, match="tests/link is a link to"):
        check_links(folder)


def test_reward_files_are_bounded_and_finite() -> None:
    assert read_rewards("reward.txt", b" 0.5\n", least=0.0, most=1.0) == {"reward": 0.5}
    assert read_rewards("reward.json", b'{"a": true, "b": 0}') == {"a": 1.0, "b": 0.0}
    bad = [b"", b"nan", b"7.5", b"-1", b"\xff", b"1" * ((1 << 20) + 1)]
    for name, data in [*(("reward.txt", one) for one in bad), ("reward.json", b'{"a": 1e999}'), ("reward.json", b"1")]:
        with pytest.raises(NoReward, match=name):
            read_rewards(name, data, least=0.0, most=1.0)


def test_rewards_of_steps_are_means_by_name_or_the_last(tmp_path: Path) -> None:
    steps = [{"a": 1.0, "b": 1.0}, {"a": 0.5}]
    assert _combined(steps, "mean") == {"a": 0.75, "b": 0.5} and _combined(steps, "final") == {"a": 0.5}


def test_the_oracles_script_is_one_command_or_files_and_a_command(tmp_path: Path) -> None:
    folder = make(tmp_path / "t", solution__solve_sh="")
    solution = folder / "solution"
    (solution / "solve_sh").unlink()
    (solution / "solve.sh").write_text("#!/usr/bin/env bash\necho 1 > /app/x\n")
    assert solution_commands(solution, {"A": "b c"}) == ["export A='b c'\necho 1 > /app/x"]
    (solution / "fix.patch").write_text("p")
    made = solution_commands(solution, {})
    assert "/solution/fix.patch" in made[0] and made[-1] == "/solution/solve.sh" and len(made) == 3
