"""Task folders with a Dockerfile each: they are played, and what can't be built is named."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from harbor_tasks import remove
from played_tasks import DONE

from agentgym.testing import play
from agentgym.types import Episode, Message, Outcome
from agentgym_envs.harbor.environment import Harbor
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.engine import Engine
from agentgym_sandboxes.docker.image import reference_of
from agentgym_sandboxes.docker.image_store import ImageStore
from apps.shell_tasks import write_tasks

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.hostile,
    pytest.mark.xdist_group("task containers"),
]


async def test_tasks_of_three_dockerfiles_are_played_and_one_that_does_not_build_is_named(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folders = write_tasks(tmp_path / "tasks", reference_of(()), count=4)
    broken = folders[-1]  # of the same image as the first
    for folder in folders:  # images of this test's own
        with (folder / "environment/Dockerfile").open("a") as dockerfile:
            dockerfile.write(f"LABEL of={tmp_path}\n" + "COPY gone /gone\n" * (folder == broken))
    environment = Harbor(path=str(tmp_path / "tasks"), oracle=False)
    tasks = {task.task_id: task for task in environment.tasks("test")}
    config = DockerConfig(pool_size=1, spares=0, spare_sessions=0, max_sessions=2, reap_every_s=1e6)
    async with DockerBackend(config) as sandbox:

        async def played(name: str, *says: Message) -> Episode:
            script = says or environment.solve(tasks[name])
            return await play(environment, tasks[name], script, sandbox=sandbox, may_break=True)

        for name in (folder.name for folder in folders if folder != broken):
            solved, idle = await played(name), await played(name, DONE)
            assert (name, solved.reward, solved.success, idle.reward) == (name, 1.0, True, 0.0)
        unbuilt = await played(broken.name)
    connected = await Engine.connect(None, 30.0)
    store = ImageStore(connected)
    made = [one for one in await store.listed() if one.name.startswith(str(tmp_path))]
    for one in made:
        assert await store._remove(one)
    await connected.close()
    assert len(made) == 3  # one for each Dockerfile, and none of the broken one
    assert unbuilt.outcome is Outcome.INFRA_ERROR and unbuilt.reward is None and unbuilt.error is not None
    assert unbuilt.error.kind == "ImageUnusable"
    assert f"{broken.name}/environment/Dockerfile: " in unbuilt.error.message
    assert "COPY failed" in unbuilt.error.message and "gone" in unbuilt.error.message


def of_another_architecture(folder: Path) -> str:
    """The id of an empty image for s390x."""
    config = json.dumps({"architecture": "s390x", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}}).encode()
    with tarfile.open(folder / "image.tar", "w") as archive:
        for name, data in (
            ("manifest.json", json.dumps([{"Config": "config.json", "RepoTags": [], "Layers": []}]).encode()),
            ("config.json", config),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    command = ["docker", "load", "-i", str(folder / "image.tar")]
    return (
        "sha256:"
        + subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("sha256:")[1].strip()
    )


async def test_what_no_image_can_be_made_for_is_left_out_by_name_or_ends_the_run_before_anything_is_sampled(
    engine: str, tmp_path: Path
) -> None:
    broken, *_, other = write_tasks(tmp_path / "tasks", reference_of(()), count=4)
    with (broken / "environment/Dockerfile").open("a") as dockerfile:
        dockerfile.write("RUN echo no such package: moon >&2; exit 3\n")
    image = of_another_architecture(tmp_path)
    toml = other / "task.toml"
    toml.write_text(toml.read_text().replace("[environment]", f'[environment]\ndocker_image = "{image}"'))

    def evaluated(skip: str) -> subprocess.CompletedProcess[str]:
        options = {"path": "tasks", "oracle": "false", "max_turns": "1", "skip_broken": skip}
        given = [f"--env.options.{name}={value}" for name, value in options.items()]
        given += ["--eval.samples_per_task=1", "--sandbox.options.pool_size=1", "--sandbox.options.spares=0"]
        command = [
            str(Path(sys.executable).with_name("agentgym")),
            "eval",
            "builtin:tiny",
            "--env",
            "harbor",
            *given,
            "--name",
            skip,
        ]
        env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, env=env)

    ended, went_on = evaluated("false"), evaluated("true")
    remove(image)
    assert (ended.returncode, went_on.returncode) == (2, 0), ended.stderr + went_on.stderr
    assert "2 of 4 tasks can't be played, the first is " in ended.stderr and "measuring" not in ended.stderr
    said = went_on.stdout + went_on.stderr
    assert "no such package: moon\n" in said and "no such package: moon\n" in ended.stderr
    assert f"{broken.name} is left out: no image was built from {broken}/environment/Dockerfile: " in said
    assert f"{other.name} is left out: image {image} is for s390x" in said
    result = json.loads((tmp_path / "evals/true/evals/step-000000.json").read_text())["result"]
    assert result["num_tasks"] == result["num_episodes"] == 2 and result["num_infra_errors"] == 0
    assert result["split_note"].startswith("2 of 4 tasks are left out: ")
