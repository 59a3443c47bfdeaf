"""Code that another user's folder names is not run before its user has said yes, and one's own is never asked about."""

from __future__ import annotations

import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from view_runs import write_step

from agentgym.cli.trust import trusted
from agentgym.errors import UserError
from agentgym.models.tiny import policy_path
from agentgym.run.loop_state import find_saved
from agentgym.runs import own
from agentgym.runs.folder import RunFolder, RunStatus

FINE = (Path(__file__).parent.parent / "data" / "repeat_number.py").read_text()
TRAP = FINE + "\nimport pathlib\npathlib.Path('sprung').touch()\n"


REST: dict[str, object] = {"rewards": {"short": 1.0}, "model": {"path": str(policy_path())}, "logging": {"sinks": []}}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Of the user; `cli` works in tmp_path."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    yield tmp_path / "home"
    for name in [name for name in sys.modules if name.startswith("_agentgym_file_")]:
        del sys.modules[name]


def foreign(path: str, config: dict[str, object] | None = None) -> Path:
    """A run of somebody else, with a file beside it that the config names."""
    Path("trap.py").write_text(TRAP)
    with RunFolder.create(Path(path).parent, Path(path).name) as folder:
        folder.save_config(config or {"env": {"name": "trap.py:RepeatNumber"}, **REST})
        folder.save_state({"position": None})
        folder.set_status(RunStatus.FAILED)
        shutil.copytree(policy_path(), folder.checkpoint_dir(1) / "hf")
    return Path(path)


COMMANDS = [
    ("chat", "runs/theirs", "--env", "counting"), ("eval", "runs/theirs", "--dry-run"), ("serve", "runs/theirs"),
    ("compare", "runs/theirs", "builtin:tiny", "--dry-run"), ("compare", "builtin:tiny", "runs/theirs", "--dry-run"),
    ("train", "--resume", "runs/theirs", "--dry-run"), ("runs", "rescore", "runs/theirs"),
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_booby_trapped_folder_is_refused_with_what_it_would_run(cli, words: tuple[str, ...]) -> None:
    foreign("runs/theirs")
    write_step(RunFolder.open("runs/theirs"), 1)
    end = cli(*words)
    assert (end.code, Path("sprung").exists()) == (2, False), end.err
    assert "env.name: trap.py:RepeatNumber" in end.err and "--trust" in end.err


def test_trust_is_asked_once(cli) -> None:
    foreign("runs/theirs")
    assert cli("eval", "runs/theirs", "--dry-run", "--trust").code == 0
    assert Path("sprung").exists()
    assert cli("train", "--resume", "runs/theirs", "--dry-run").code == 0


def test_what_only_installed_plugins_play_is_not_asked_about(cli) -> None:
    foreign("runs/theirs", {**REST, "env": {"name": "counting"}, "rewards": {}})
    assert cli("eval", "runs/theirs", "--dry-run").code == 0


def test_a_run_of_ones_own_is_never_asked_about_and_a_copy_or_a_change_is(cli) -> None:
    Path("mine.py").write_text(FINE)
    assert (
        cli(
            "train", "--env", "mine.py:RepeatNumber", "--name", "mine", "--reward", "short", "--set", "logging.sinks=[]"
        ).code
        == 0
    )
    assert cli("train", "--resume", "runs/mine", "--dry-run").code == 0
    assert cli("train", "--resume", "runs/mine", "--loop.steps", "50").code == 0  # another config of one's own
    assert cli("train", "--resume", "runs/mine", "--loop.steps", "60", "--dry-run").code == 0
    shutil.copytree("runs/mine", "runs/copy")  # as out of an archive, with other files beside it
    end = cli("train", "--resume", "runs/copy", "--dry-run")
    assert end.code == 2 and "moved, copied or edited since" in end.err
    config = Path("runs/mine/config.yaml")
    config.write_text(config.read_text().replace("mine.py", "trap.py"))
    assert cli("train", "--resume", "runs/mine", "--dry-run").code == 2


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"rewards": {"a.py:short": 1.0}}, "rewards: a.py:short"),
        ({"loss": {"name": "pkg.module:Loss"}}, "loss.name: pkg.module:Loss"),
        ({"loss": "pkg:loss"}, "loss: pkg:loss"),
        ({"env": {"name": "gym", "options": {"id": "their.module:Env-v0"}}}, "env.options.id: their.module:Env-v0"),
        ({"agent": {"name": "x", "options": {"command": ["sh"]}}}, "agent.options.command: ['sh']"),
        ({"sandbox": {"name": "unsafe_subprocess"}}, "sandbox.name: unsafe_subprocess"),
        ({"sandbox": {"name": "monty", "options": {"allow_root": True}}}, "sandbox.options.allow_root: True"),
        ({"policy": {"base_url": "http://evil"}}, "policy.base_url: http://evil"),
        ({"logging": {"sinks": ["their_sinks:Sink"]}}, "logging.sinks.0: their_sinks:Sink"),
        ({"model": {"path": "builtin:tiny"}, "policy": {"base_url": ""}, "env": {"name": "math"}}, ""),
    ],
)
def test_what_a_config_may_run_is_named(config: dict[str, object], found: str) -> None:
    assert own.code_in(config) == ([found] if found else [])


class Trap:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return Path.touch, (Path("sprung"),)  # type: ignore[return-value]


def test_the_state_of_a_loop_is_not_unpickled_before_it_is_trusted(tmp_path: Path) -> None:
    run = foreign("runs/theirs", {"env": {"name": "counting"}})
    (run / "checkpoints/step-000001" / own.PICKLE).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(UserError, match=r"state: .*loop\.pickle.*--trust"):
        trusted(run, {}, trust=False, pickles=True)
    with RunFolder.open(run) as folder, pytest.raises(UserError, match="not written by you"):
        find_saved(folder, None, policy_path(), print)
    assert not Path("sprung").exists()
    trusted(run, {}, trust=True, pickles=True)
    with RunFolder.open(run) as folder, pytest.raises(UserError, match="not the state of a loop"):
        find_saved(folder, None, policy_path(), print)


def test_a_user_without_a_home_has_runs_of_his_own(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.write_text("a file, so nothing can be made in it")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run = foreign("runs/mine")
    assert not own.is_own(run)
    own.mark_run(run)
    assert own.is_own(run)
    assert (tmp_path / f"agentgym-{own.os.getuid()}" / "key").stat().st_mode & 0o777 == 0o600
