"""What a person asks of a run reaches it once, whoever asks and however often."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from view_runs import write_run

from agentgym.errors import UserError
from agentgym.run.control import EARLIER, THERE, Control
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.runs.steering import FILE, Steering

STEER = "/api/runs/runs:one/steer"


@pytest.fixture
def folder(tmp_path: Path):
    with write_run(tmp_path / "runs", "one", steps=1, done=False) as made:
        yield made


class Deeds:
    """What a run does when it is asked to."""

    def __init__(self, known: bool = False) -> None:
        self.done: list[str] = []
        self._known = known

    async def save(self) -> bool:
        self.done.append("save")
        return self._known

    async def evaluate(self) -> bool:
        self.done.append("evaluate")
        return self._known

    async def change(self, setting: str, value: object) -> str:
        if setting == "loop.seed":
            raise UserError("no")
        self.done.append(f"{setting}={value}")
        return "1 -> 2"

    async def answer(self, helm: Control, step: int) -> None:
        await helm.after_step(step, save=self.save, evaluate=self.evaluate, change=self.change)


async def test_a_run_does_what_two_clients_asked_once_and_says_so(folder: RunFolder, open_view) -> None:
    first, second = open_view(folder.path.parent), open_view(folder.path.parent)
    for view, action in ((first, "checkpoint"), (second, "checkpoint"), (second, "evaluate"), (first, "stop")):
        assert view.post(STEER, json={"action": action}).status_code == 202
    helm, deeds = Control(folder, Steering(folder.path)), Deeds()
    await deeds.answer(helm, 7)
    assert deeds.done == ["save", "evaluate", "save"] and helm.stopped.startswith("stopped after step 7")
    for view in (first, second):
        asked = view.get("/api/runs/runs:one").json()["steering"]["requests"]
        assert [(one["action"], one["state"], one["step"]) for one in asked] == [
            ("checkpoint", "applied", 7), ("evaluate", "applied", 7), ("stop", "applied", 7),
        ]  # fmt: skip
    events = (folder.path / "events.log").read_text()
    assert "checkpoint was asked for: applied at step 7" in events and "stop was asked for" in events
    await deeds.answer(helm, 8)
    assert len(deeds.done) == 3


async def test_what_is_there_already_is_not_made_again_and_the_answer_says_so(folder: RunFolder) -> None:
    asked, helm, deeds = Steering(folder.path), Control(folder, Steering(folder.path)), Deeds(known=True)
    asked.ask("checkpoint")
    await deeds.answer(helm, 2)
    assert [(one.state, one.text) for one in asked.read()] == [("applied", THERE)]


async def test_a_resumed_run_is_not_stopped_by_what_was_asked_of_an_earlier_one(folder: RunFolder) -> None:
    asked, helm, deeds = Steering(folder.path), Control(folder, Steering(folder.path)), Deeds()
    asked.ask("stop")
    folder.set_status(RunStatus.RUNNING)
    asked.ask("checkpoint")  # of the one that is starting
    helm.begin(4)
    await deeds.answer(helm, 5)
    assert deeds.done == ["save"] and not helm.stopped
    assert [(one.state, one.step, one.text) for one in asked.read()] == [("refused", 4, EARLIER), ("applied", 5, "")]


def test_many_clients_at_once_make_one_request(folder: RunFolder) -> None:
    start = threading.Barrier(8)

    def ask() -> None:
        client = Steering(folder.path)
        start.wait()
        client.ask("checkpoint")

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len((folder.path / FILE).read_text().splitlines()) == 1


def test_lines_that_are_no_requests_are_passed_over(folder: RunFolder) -> None:
    lines = ["garbage", "[]",
             '{"request": 3, "action": "stop", "time": 1}',
             '{"answer": "x", "state": "applied", "step": 1}',
             '{"request": "a", "action": "rm -rf", "time": 1}', '{"request": "b", "action": "stop", "time": 1}',
             '{"request": "c", "action": "checkp']  # fmt: skip
    (folder.path / FILE).write_text("\n".join(lines))
    assert [one.id for one in Steering(folder.path).read()] == ["b"]
    with pytest.raises(UserError, match=r"'stopp'.*stop"):
        Steering(folder.path).ask("stopp")


def test_a_run_that_has_ended_or_is_no_training_cannot_be_steered(view: TestClient, runs: Path) -> None:
    answer = view.post(STEER, json={"action": "stop"})
    assert answer.status_code == 409 and "done, not running" in answer.json()["error"]["message"]
    assert not (runs / "one" / FILE).exists()
    assert view.get("/api/runs/runs:one").json()["steering"]["able"] is False


def test_an_unknown_wish_is_refused(folder: RunFolder, open_view) -> None:
    view = open_view(folder.path.parent)
    for action in ("delete", "", 3, None):
        assert view.post(STEER, json={"action": action}).status_code == 400
    assert open_view(folder.path.parent, can_steer=False).post(STEER, json={"action": "stop"}).status_code == 403


async def test_events_follow_a_run_and_a_reader_that_was_cut_off_goes_on_where_it_was(
    folder: RunFolder, open_view
) -> None:
    from agentgym.runs.checkpoints import drop_undone
    from agentgym.tables.roots import Roots
    from agentgym.tables.run import Run
    from agentgym.view.live import live

    run = Run(next(Roots.of([folder.path.parent]).locations()), None)
    seen: list[tuple[str, int, dict]] = []

    async def read(start: int | None, until: str, change=lambda: None) -> None:
        """change: made once the reader has seen what there was."""
        ended: list[str] = []
        async for part in live(run, start, lambda: bool(ended), poll_s=0.001):
            if not part.startswith(b"id:"):
                continue
            offset, name, data = (line.partition(": ")[2] for line in part.decode().strip().split("\n"))
            seen.append((name, int(offset), json.loads(data)))
            if name == "status":
                change()
            if name == until:
                ended.append(name)

    def step_2() -> None:
        folder.append_metrics(2, {"train/loss": 0.5, "x": float("nan")})

    await read(None, "step", step_2)
    [data] = [data for name, _, data in seen if name == "step"]
    assert data["metrics"] == {"train/loss": 0.5, "x": None}
    last = seen[-1][1]
    assert last == (folder.path / "metrics.jsonl").stat().st_size
    seen.clear()
    folder.append_metrics(3, {"train/loss": 0.25})
    folder.event("checkpoint")
    await read(last, "status")
    assert [data["step"] for name, _, data in seen if name == "step"] == [3]
    seen.clear()
    await read(None, "reset", lambda: drop_undone(folder, 1))
    assert seen[-1][2] == {"last_step": 1}
    seen.clear()
    await read(7, "status")  # an offset inside of a line
    assert [name for name, _, _ in seen] == ["reset", "status"]


def test_a_process_that_is_stuck_is_said_in_words(folder: RunFolder, open_view) -> None:
    logs = folder.path / "logs"
    logs.mkdir()
    view = open_view(folder.path.parent)
    assert view.get("/api/runs/runs:one").json()["processes"] == {"text": "", "is_stuck": False}
    beat = {"name": "controller", "pid": 1, "place": "another host", "time": 0.0, "cpu_percent": 0.0, "busy": []}
    (logs / "controller.beat").write_text(json.dumps(beat))
    said = view.get("/api/runs/runs:one").json()["processes"]
    assert said["is_stuck"] and said["text"].startswith("the controller, process 1, is stuck in native code")
    folder.set_status(RunStatus.DONE)
    assert view.get("/api/runs/runs:one").json()["processes"]["text"] == ""


async def test_a_setting_is_changed_only_to_what_it_may_be(folder: RunFolder, open_view) -> None:
    view, helm, deeds = open_view(folder.path.parent), Control(folder, Steering(folder.path)), Deeds()

    def change(setting: str, value: object) -> dict:
        return view.post(STEER, json={"action": "set", "setting": setting, "value": value}).json()

    assert "These can: optimizer.lr" in change("loop.steps", 9)["error"]["message"]
    assert "max_staleness is 'many' (str); allowed is int" in change("loop.max_staleness", "many")["error"]["message"]
    for setting, value in (("loop.eval_every", 2), ("loop.eval_every", 2), ("optimizer.lr", 1)):
        assert change(setting, value)["steering"]["able"]
    Steering(folder.path).ask("set", "loop.seed", 3)  # by hand; the run checks again
    await deeds.answer(helm, 3)
    assert deeds.done == ["loop.eval_every=2", "optimizer.lr=1.0"]
    asked = view.get("/api/runs/runs:one").json()["steering"]["requests"]
    assert [(one["setting"], one["state"], one["text"]) for one in asked] == [
        ("loop.eval_every", "applied", "1 -> 2"), ("optimizer.lr", "applied", "1 -> 2"), ("loop.seed", "refused", "no"),
    ]  # fmt: skip
    assert "optimizer.lr=1.0 was asked for: applied at step 3: 1 -> 2" in (folder.path / "events.log").read_text()
