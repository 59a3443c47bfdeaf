"""Task folders with a Dockerfile each: they are played, and what can't be built is named."""

from __future__ import annotations

from pathlib import Path

import pytest
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

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.hostile]


async def test_tasks_of_three_dockerfiles_are_played_and_one_that_does_not_build_is_named(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folders = write_tasks(tmp_path / "tasks", reference_of(()), count=4)
    broken = folders[1]
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
