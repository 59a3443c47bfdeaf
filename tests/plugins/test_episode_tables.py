"""MLflow and trackio get every value and the episodes of a group; their own libraries read them back."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym.hooks import PluginRegistry
from agentgym.sinks import COLUMNS, GroupSink, MetricSink, episode_rows, show_group
from agentgym.types import Episode, Group, Outcome, Stop, Task

WRITE = """
import sys
sys.path.insert(0, {tests!r})
from test_episode_tables import group
from agentgym.hooks import PluginRegistry
for steps in ((0, 1), (2,)):  # the second time as a run that is resumed
    sink = PluginRegistry.discover().sink('trackio')()
    sink.open('runs/one', {{'env': {{'name': 'math'}}}})
    for step in steps:
        sink.log_group(step, group())
        sink.log(step, {{'train/loss': 1.0 / (step + 1), 'train/kl': float('nan')}})
    sink.close(); sink.close()
"""
READ = """
import json
from trackio import Api, SQLiteStorage
(run,) = Api().runs('agentgym')
print(json.dumps([run.name, run.config, SQLiteStorage.get_logs('agentgym', run.name)], default=str))
"""


def group() -> Group:
    task = Task(task_id="sum-1", prompt=({"role": "user", "content": "1 + 1?"},))
    made = [
        Episode(
            episode_id=f"e-{number}",
            task=task,
            seed=0,
            outcome=Outcome.SCORED,
            stop=Stop.DONE,
            reward=reward,
            rewards={"success": reward},
            info={"success": reward == 1.0},
            messages=[*task.prompt, {"role": "assistant", "content": said}],
        )
        for number, (reward, said) in enumerate([(0.0, "3 \ud800 <script>"), (1.0, "2")])
    ]
    return Group(group_id=7, task=task, start_version=3, episodes=made, advantages=[-1.0, 1.0])


def test_a_table_has_a_row_for_each_episode_with_what_tells_them_apart() -> None:
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in episode_rows(12, group())]
    assert [(row["episode"], row["success"], row["reward"], row["advantage"]) for row in rows] == [
        ("e-0", False, 0.0, -1.0),
        ("e-1", True, 1.0, 1.0),
    ]
    assert rows[0]["conversation"] == "[user]\n1 + 1?\n\n[assistant]\n3 \ufffd <script>" and rows[0]["step"] == 12


def test_a_sink_that_shows_no_episodes_is_left_alone() -> None:
    class Plain:
        def open(self, run_dir: str, config: object) -> None: ...
        def log(self, step: int, metrics: object) -> None: ...
        def close(self) -> None: ...

    sink: MetricSink = Plain()
    assert not isinstance(sink, GroupSink)
    show_group(sink, 1, group())


def test_mlflow_holds_every_value_and_table_and_a_resumed_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install mlflow-skinny")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    for steps in ((0, 1), (2,)):  # the second time as a run that is resumed
        sink = PluginRegistry.discover().sink("mlflow")()
        sink.open(str(folder), {"env": {"name": "math", "options": {}}, "loop": {"steps": 3}})
        for step in steps:
            show_group(sink, step, group())
            sink.log(step, {"train/loss": 1.0 / (step + 1), "train/kl": math.nan})
        sink.close()
        sink.close()
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "runs" / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("agentgym")
    [run] = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("one", "FINISHED")
    assert run.data.params == {"env.name": "math", "env.options": "{}", "loop.steps": "3"}
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert sorted((one.step, one.value) for one in history) == [(0, 1.0), (1, 0.5), (2, pytest.approx(1 / 3))]
    assert [one.path for one in client.list_artifacts(run.info.run_id, "episodes")] == [
        f"episodes/step-00000{step}.json" for step in range(3)
    ]
    assert [one["path"] for one in json.loads(run.data.tags["mlflow.loggedArtifacts"])][
        -1
    ] == "episodes/step-000002.json"
    table = json.loads(Path(client.download_artifacts(run.info.run_id, "episodes/step-000002.json")).read_text())
    assert table == {"columns": list(COLUMNS), "data": episode_rows(2, group())}


@pytest.mark.slow
def test_trackio_holds_every_value_and_table_and_keeps_the_terminal_clean(tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason="pip install trackio")
    tests = str(Path(__file__).parent)
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "tracked"), "HOME": str(tmp_path)}
    written, read = (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120
        )
        for code in (WRITE.format(tests=tests), READ)
    )
    assert written.returncode == 0 and written.stdout == written.stderr == "", written.stderr
    assert read.returncode == 0, read.stderr
    name, config, rows = json.loads(read.stdout.splitlines()[-1])
    assert name == "one" and config["env"] == {"name": "math"}
    losses = {row["step"]: row["train/loss"] for row in rows if "train/loss" in row}
    assert losses == {0: 1.0, 1: 0.5, 2: pytest.approx(1 / 3)}
    tables = [row["episodes"] for row in rows if "episodes" in row]
    assert len(tables) == 3 and "e-1" in json.dumps(tables)
