"""What the benchmarks share: figures that outlive a stop, processes that do not, and the GPUs that are looked at."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ARMS = """
import sys, subprocess, time
from pathlib import Path
sys.path.insert(0, {benchmarks!r})
from finished_arms import FinishedArms, run, stoppable
out = Path({out!r})
with stoppable():
    arms = FinishedArms(out / "arms.jsonl", {{"tokens": 1}})
    try:
        with arms.arm("first") as figures:
            figures["rate"] = 7
        with arms.arm("second"):
            raise ValueError("it broke")
        with arms.arm("third"):
            run([sys.executable, "-c", {child!r}], out=out / "child.txt")
    finally:
        print("table of", sorted(arms.found), flush=True)
"""
CHILD = """
import subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(grandchild.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_stopped_script_has_its_finished_arms_and_table_and_leaves_no_process(tmp_path: Path) -> None:
    script = ARMS.format(benchmarks=str(BENCHMARKS), out=str(tmp_path), child=CHILD)
    started = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    child = tmp_path / "child.txt"
    while not (child.exists() and child.read_text().endswith("\n")):
        assert started.poll() is None, started.stderr
        time.sleep(0.05)
    started.send_signal(signal.SIGTERM)
    said, _ = started.communicate()
    assert started.returncode == 128 + signal.SIGTERM
    rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert rows == [{"arm": "first", "rate": 7}, {"arm": "second", "failed": "ValueError: it broke"}]
    assert said.splitlines()[-1] == "table of ['first']"
    assert not alive(int(child.read_text())), "what an arm started in a group of its own outlives it"


def test_finished_arms_are_not_run_again_with_the_same_settings_alone(tmp_path: Path) -> None:
    from finished_arms import FinishedArms  # type: ignore[import-not-found]

    file = tmp_path / "arms.jsonl"
    with FinishedArms(file, {"tokens": 1}).arm("one") as figures:
        assert not figures
        figures["rate"] = 2.5
    for settings, kept in (({"tokens": 1}, {"rate": 2.5}), ({"tokens": 2}, {})):
        with FinishedArms(file, settings).arm("one") as figures:
            assert figures == kept


def test_a_process_over_its_limit_ends_and_what_it_wrote_is_there(tmp_path: Path) -> None:
    from finished_arms import run

    out = tmp_path / "out.txt"
    with pytest.raises(subprocess.TimeoutExpired):
        run(["sh", "-c", "setsid sleep 600 & echo $!; wait"], out=out, limit_s=3.0)
    assert not alive(int(out.read_text()))


def test_gpus_are_those_that_this_process_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi knows the machine's numbers, and answers in its own order."""
    fake = tmp_path / "nvidia-smi"
    fake.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\nprintf "2, GPU-c, 2048, 50\\n5, GPU-f, 5120, 100\\n"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,2")
    from gpu_sampler import GpuSampler, UnreadGpus  # type: ignore[import-not-found]

    sampler = GpuSampler([0, 1], every_s=600)
    try:
        assert (tmp_path / "asked").read_text().split()[-2:] == ["-i", "5,2"]
        assert sampler.read() == [(5.0, 1.0), (2.0, 0.5)]
        at = sampler.readings[0][0]
        sampler.readings.append((at + 10, [(9.0, 0.0), (2.5, 0.0)]))
        assert sampler.taken_gib() == [4.0, 0.5]
        assert sampler.load(at - 1, at + 1) == [1.0, 0.5]
        assert sampler.load(at - 1, at + 11) == [0.5, 0.25]
        assert sampler.load(at + 11, at + 12) == []
    finally:
        sampler.close()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a")
    with pytest.raises(UnreadGpus, match="MIG-a"):
        GpuSampler([0])


def test_weights_are_drawn_once_for_a_shape(tmp_path: Path) -> None:
    from qwen3_folder import model_field, write_folder  # type: ignore[import-not-found]

    write_folder("Qwen/Qwen3-0.6B", tmp_path, tiny=True)
    assert model_field(tmp_path) == f"model={{path: '{tmp_path}', random_weights: true}}"
    write_folder("Qwen/Qwen3-0.6B", tmp_path, tiny=True, weights=True)
    assert model_field(tmp_path) == f"model={{path: '{tmp_path}', random_weights: false}}"
    weights = tmp_path / "model.safetensors"
    drawn = weights.stat()
    write_folder("Qwen/Qwen3-0.6B", tmp_path, tiny=True, weights=True)
    assert weights.stat().st_mtime_ns == drawn.st_mtime_ns
    write_folder("Qwen/Qwen3-0.6B", tmp_path)
    assert not weights.exists(), "weights of another shape"


JOB = """
import asyncio, sys
sys.path.insert(0, {benchmarks!r})
from finished_arms import run_job, stoppable

async def serve(questions):
    while True:
        (await questions.get()).set_result("the service still answered")

async def job():
    questions, answer = asyncio.Queue(), asyncio.get_running_loop().create_future()
    service = asyncio.create_task(serve(questions))
    try:
        print("runs", flush=True)
        await asyncio.sleep(60)
    finally:
        questions.put_nowait(answer)
        print(await answer, flush=True)

with stoppable():
    run_job(job())
"""


def test_a_signal_ends_a_job_and_leaves_it_its_services(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(JOB.format(benchmarks=str(BENCHMARKS)))
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "runs\n"
            process.terminate()
            said, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, said) == (143, "the service still answered\n")
