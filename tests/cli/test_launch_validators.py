"""What `agentgym launch` writes, read by the validators of SkyPilot and Kubernetes in an environment of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

BIN = Path(__file__).parents[2] / ".venv-launchers" / "bin"
pytestmark = [
    pytest.mark.hostile,
    pytest.mark.skipif(not (BIN / "sky").exists(), reason=f"needs {BIN.parent.name}: make test-hostile"),
]
PATCH = """
kind: Job
metadata: {labels: {kueue.x-k8s.io/queue-name: team}}
spec:
  suspend: true
  template: {spec: {nodeSelector: {gpu: h100}, imagePullSecrets: [{name: registry}]}}
"""
OLDEST = "1.33"  # of which a Job may succeed by its first pod


@pytest.fixture
def written(tmp_path: Path, cli):
    """Writes to a file what a dry run prints."""

    def write(*words: str) -> str:
        (tmp_path / "recipe.yaml").write_text("env: {name: counting}\nlogging: {sinks: []}\n")
        shown = cli("launch", words[0], "recipe.yaml", "--name", "one", "--nodes", "2", *words[1:], "--dry-run")
        assert shown.code == 0, shown.err
        (tmp_path / "written.yaml").write_text(shown.out.partition("\nNothing was submitted")[0])
        return str(tmp_path / "written.yaml")

    return write


def said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["--gpus", "8", "--cpus", "32", "--memory", "64Gi", "--claim", "runs", "--secret", "keys", "--variable=A=b"],
        ["--patch", "patch.yaml"],
    ],
)
@pytest.mark.parametrize("version", [OLDEST, "1.37"])
def test_kubernetes_takes_the_objects(words: list[str], version: str, written, tmp_path: Path) -> None:
    (tmp_path / "patch.yaml").write_text(PATCH)
    validate = [str(BIN / "kubernetes-validate"), "--strict", "--kubernetes-version", version]
    found = said(*validate, written("kubernetes", "--image", "x", *words))
    assert found.count(" passed for resource ") == 3 and "ERROR" not in found, found


def test_skypilot_takes_the_task(written, tmp_path: Path) -> None:
    (tmp_path / "launches" / "one").mkdir(parents=True)
    (tmp_path / "launches" / "one" / "recipe.yaml").touch()
    (tmp_path / "patch.yaml").write_text("resources: {use_spot: true, infra: k8s}\n")
    words = ("--accelerators", "H100:8", "--cpus", "64", "--volume", "runs", "--secret", "KEY", "--variable=A=b")
    path = written("skypilot", *words, "--patch", "patch.yaml")
    program = (
        "import sys, sky, yaml\n"
        "task = sky.Task.from_yaml_config(yaml.safe_load(open(sys.argv[1])), secrets_overrides=[('KEY', 'x')])\n"
        "print(task.num_nodes, task.envs, task.volumes, *task.resources)"
    )
    environment = {"HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1", "PATH": "/usr/bin:/bin"}
    command = [str(BIN / "python"), "-c", program, path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 {'A': 'b'} {'/agentgym-runs': 'runs'} Kubernetes("), done.stdout
    assert "H100" in done.stdout and "Spot" in done.stdout and "cpus=64+" in done.stdout, done.stdout
