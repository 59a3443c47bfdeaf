"""`agentgym launch`: what it writes, prints and submits, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentgym.yaml import parse_yaml, read_yaml

RECIPE = "env: {name: counting}\nlogging: {sinks: []}\n"


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli):
    """sbatch, kubectl and sky note their words; `fails` makes them fail."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "kubectl", "sky"):
        failing = f"[ ! -e {tmp_path}/fails ] || {{ echo no quota >&2; exit 1; }}"
        script = f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/words\n{failing}\n'
        (folder / name).write_text(script + "echo Submitted batch job 7\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.defpath}")
    return lambda cluster, *words: cli("launch", cluster, "recipe.yaml", "--name", "one", *words)


@pytest.mark.parametrize(
    ("cluster", "words", "submitted"),
    [
        ("slurm", ["--option=--partition=gpu"], "sbatch launches/one/job.sh"),
        ("kubernetes", ["--image", "x"], "kubectl apply -f launches/one/kubernetes.yaml"),
        (
            "skypilot",
            ["--volume", "mine", "--secret", "KEY", "--option=--priority=9"],
            "sky jobs launch --yes --secret=KEY --priority=9 launches/one/skypilot.yaml",
        ),
    ],
)
def test_what_a_dry_run_prints_is_what_is_submitted(cluster, words, submitted, submit, tmp_path: Path) -> None:
    shown = submit(cluster, "--nodes", "2", "--loop.steps", "9", *words, "--dry-run")
    assert shown.code == 0, shown.err
    assert submitted in shown.out and "Nothing was submitted" in shown.out
    assert not (tmp_path / "launches").exists() and not (tmp_path / "words").exists()
    end = submit(cluster, "--nodes", "2", "--loop.steps", "9", *words)
    assert end.code == 0 and "Submitted batch job 7" in end.out, end.err
    assert (tmp_path / "words").read_text() == f"{submitted}\n"
    script = (tmp_path / submitted.split()[-1]).read_text()
    assert shown.out.startswith(script.rstrip())
    recipe = read_yaml("launches/one/recipe.yaml")
    assert recipe["loop"]["steps"] == 9
    launcher = {"job": "one", "num_hosts": 2} if cluster == "kubernetes" else {}
    assert recipe["launcher"].items() >= {"name": cluster, **launcher}.items()
    assert recipe["logging"]["runs_dir"] == ("/agentgym-runs" if cluster == "skypilot" else "runs")


def test_the_pods_get_the_recipe_as_a_file(submit) -> None:
    out = submit("kubernetes", "--image", "x", "--claim", "shared", "--dry-run").out.partition("\nNothing")[0]
    [config, service, job] = [parse_yaml(one, where="printed") for one in out.split("---\n")]
    [(name, text)] = config["data"].items()
    assert parse_yaml(text, where=name)["env"]["name"] == "counting"
    pod = job["spec"]["template"]["spec"]
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert f"{mounts['recipe']}/{name} --name one" in pod["containers"][0]["command"][2]
    assert pod["subdomain"] == service["metadata"]["name"] == job["metadata"]["name"] == "one"
    assert {volume["name"] for volume in pod["volumes"]} == set(mounts) == {"recipe", "shm", "work"}


PATCH = """
kind: Job
metadata: {labels: {kueue.x-k8s.io/queue-name: team}}
spec:
  backoffLimit: null
  template:
    spec:
      tolerations: [{key: gpu, operator: Exists}]
      containers:
      - name: agentgym
        env: [{name: TOKEN, valueFrom: {secretKeyRef: {name: s, key: k}}}]
        volumeMounts: [{mountPath: /models, name: work}]
---
kind: Service
metadata: {annotations: {team: red}}
"""


def test_a_patch_is_laid_over_the_object_of_its_kind(submit, tmp_path: Path) -> None:
    (tmp_path / "patch.yaml").write_text(PATCH)
    words = ("--image", "x", "--cpus", "4", "--variable=A=b=c", "--patch", "patch.yaml", "--dry-run")
    out = submit("kubernetes", *words).out.partition("\nNothing")[0]
    [_, service, job] = [parse_yaml(one, where="printed") for one in out.split("---\n")]
    assert service["metadata"] == {
        **job["metadata"],
        "labels": service["metadata"]["labels"],
        "annotations": {"team": "red"},
    }
    assert job["metadata"]["labels"] == {**service["metadata"]["labels"], "kueue.x-k8s.io/queue-name": "team"}
    assert "backoffLimit" not in job["spec"] and job["spec"]["completions"] == 1
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists"}] and pod["restartPolicy"] == "Never"
    assert container["image"] == "x" and container["resources"]["requests"] == {"cpu": "4"}
    assert [one["name"] for one in container["env"]] == ["A", "TOKEN"] and container["env"][0]["value"] == "b=c"
    mounts = [(mount["mountPath"], mount["name"]) for mount in container["volumeMounts"]]
    assert mounts[-2:] == [("/work", "work"), ("/models", "work")] and len(mounts) == 4


def test_machines_with_gpus_get_vllm_and_a_task_its_patch(submit, tmp_path: Path) -> None:
    (tmp_path / "patch.yaml").write_text("resources: {use_spot: true}\n")
    printed = submit("skypilot", "--accelerators", "H100:8", "--cpus", "64", "--patch", "patch.yaml", "--dry-run")
    task = parse_yaml(printed.out.partition("\nNothing")[0], where="printed")
    assert "the run is lost with its machine" in printed.err
    assert task["resources"] == {"accelerators": "H100:8", "cpus": "64+", "use_spot": True}
    assert "vllm==" in task["setup"]
    assert "vllm" not in submit("skypilot", "--dry-run").out


def test_a_scheduler_that_refuses_is_quoted(submit, tmp_path: Path) -> None:
    (tmp_path / "fails").touch()
    end = submit("slurm")
    assert end.code == 1 and "`sbatch launches/one/job.sh` failed: no quota" in end.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["slurm", "--loop.step", "9"], "Did you mean 'loop.steps'?"),
        (["slurm", "--name", "One_1"], "'One_1' can't name a launched run"),
        (["slurm", "--nodes", "0"], "--nodes 0 must be at least 1"),
        (["slurm", "--name", "there"], "there is a run 'there' in 'runs' already"),
        (["kubernetes"], "--image"),
        (["kubernetes", "--image", "x", "--patch", "recipe.yaml"], "no object of kind None to patch. Available: Conf"),
        (["skypilot", "--nodes", "2"], "2 nodes of SkyPilot share no folder 'runs'"),
        (["slurm", "--variable=A"], "'A' is not NAME=VALUE"),
        (["lsf"], "invalid choice: 'lsf'"),
    ],
)
def test_mistakes_are_found_before_anything_is_submitted(words, said, submit, cli, tmp_path: Path) -> None:
    (tmp_path / "runs" / "there").mkdir(parents=True)
    end = cli("launch", words[0], "recipe.yaml", *words[1:])
    assert end.code == 2 and said in end.err, end.err
    assert not (tmp_path / "launches").exists() and not (tmp_path / "words").exists()


def test_a_scheduler_that_is_not_installed_is_named(submit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    end = submit("slurm")
    assert end.code == 2 and "slurm needs sbatch, which is not on the PATH here; --dry-run prints" in end.err
    assert submit("slurm", "--dry-run").code == 0
