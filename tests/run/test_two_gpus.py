"""benchmarks/two_gpus.py: its commands are right, lanes run beside each other, and nothing outlives its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from finishing import finished
from parsing import parsed
from shell_parts import shell

SECTIONS = ("model.", "trainer.", "generator.")
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


@pytest.mark.hostile
def test_every_part_is_a_command_that_its_program_takes(tmp_path: Path) -> None:
    from two_gpus import phases  # type: ignore[import-not-found]

    parts = [part for phase in phases(tmp_path / "models", tmp_path) for lane in phase for part in lane]
    assert len({part.name for part in parts}) == len(parts) >= 15
    tests: set[str] = set()
    for part in parts:
        words = part.command[part.command.index(sys.executable) + 1 :]
        if words[:2] == ["-m", "pytest"]:
            tests |= {word for word in words if word.startswith("tests/")}
        else:
            assert parsed(words, ROOT)["code"] == 0, part.name
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", "-m", "gpu", *tests]
    done = subprocess.run(collect, cwd=ROOT, capture_output=True, text=True, timeout=120)
    found = [line for line in done.stdout.splitlines() if "::test_" in line]
    assert done.returncode == 0 and {line.partition("::")[0] for line in found} == tests
    assert {"two" in line.partition("::")[2] for line in found if "options" in line} == {True, False}


def test_the_fields_that_parts_give_are_those_of_recipes(tmp_path: Path) -> None:
    from loop_limit import random_fields  # type: ignore[import-not-found]
    from qwen3_folder import NAMES, write_folder  # type: ignore[import-not-found]
    from two_gpus import LARGE, MIDDLE, MODELS, phases

    for model in (*MODELS, MIDDLE, LARGE):
        write_folder(NAMES[model], tmp_path / model)
    read = set()
    for part in (part for phase in phases(tmp_path, tmp_path) for lane in phase for part in lane):
        recipes = [Path(word) for word in part.command if word.endswith(".yaml")]
        fields = [word for word in part.command if "=" in word and word.startswith(SECTIONS)]
        fields = random_fields(tmp_path / "0.6B", 1024, "FullVllm") * (part.name in ("loop", "tailed")) + fields
        if recipes:
            recipe = finished(recipes, fields)
            assert recipe.trainer.float8 == (part.name.removeprefix("float8-") if "float8" in part.name else "off")
            read.add(part.name)
    assert read == {"float8-off", "float8-rowwise", "float8-tensorwise", "loop", "tailed"}


def test_the_large_model_is_left_out_where_it_does_not_fit(tmp_path: Path) -> None:
    from two_gpus import LARGE, phases

    def names(large: bool) -> set[str]:
        chosen = phases(tmp_path, tmp_path, large=large)
        return {part.name for phase in chosen for lane in phase for part in lane}

    assert names(True) - names(False) == {f"draw-{LARGE}", f"sync-{LARGE}"}


def test_lanes_run_beside_each_other_and_a_part_that_fails_stops_no_other(tmp_path: Path) -> None:
    from two_gpus import Clock, run_phases

    meets = f"touch {tmp_path}/{{}}; until [ -e {tmp_path}/{{}} ]; do sleep 0.1; done; echo met"
    lanes = [
        [shell("left", meets.format("a", "b")), shell("fails", "exit 3"), shell("after", "echo here")],
        [shell("right", meets.format("b", "a")), shell("garbled", "")],
    ]
    found = list(run_phases([lanes, [[shell("last", "echo done")]]], tmp_path, Clock()))
    assert [(name, row[:2]) for name, row in found if name not in ("fails", "garbled")] == [
        ("left", ("said", "met")),
        ("after", ("said", "here")),
        ("right", ("said", "met")),
        ("last", ("said", "done")),
    ]
    said = dict(found)
    assert said["fails"][0] == said["garbled"][0] == "failed" and "IndexError" in said["garbled"][1]


def test_what_would_begin_too_late_is_not_begun_and_what_is_there_is_read(tmp_path: Path) -> None:
    from two_gpus import LEAST_S, Clock, run_phases

    (tmp_path / "kept.txt").write_text("before\n")
    clock = Clock(time.monotonic() + LEAST_S - 1)
    found = list(run_phases([[[shell("kept", "echo again"), shell("late", "echo late")]]], tmp_path, clock))
    assert found == [("kept", ("said", "before", "")), ("late", ("not begun", "no time is left", ""))]


def test_a_machine_with_fewer_gpus_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import two_gpus

    monkeypatch.setattr(two_gpus, "this_machine", lambda: SimpleNamespace(gpus=[SimpleNamespace(memory_gib=80.0)]))
    monkeypatch.setattr(sys, "argv", ["two_gpus.py", "--out", str(tmp_path / "out"), "--models", str(tmp_path / "m")])
    with pytest.raises(SystemExit):
        two_gpus.main()
    assert "has 1 GPUs and the parts need two; --list shows" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_signal_ends_all_lanes_and_the_table_has_what_ended(tmp_path: Path) -> None:
    script = f"""
import sys
from types import SimpleNamespace
sys.path[:0] = [{str(ROOT / "benchmarks")!r}, {str(ROOT / "tests")!r}, {str(ROOT / "tests" / "jobs")!r}]
import two_gpus
from shell_parts import shell
two_gpus.MODELS, two_gpus.this_machine = (), lambda: SimpleNamespace(gpus=[SimpleNamespace(memory_gib=80.0)] * 2)
first = [[shell("one", "echo first")]]
hangs = "echo $$ > {tmp_path}/{{0}}; setsid sleep 600 & echo $! >> {tmp_path}/{{0}}; wait"
second = [[shell("left", hangs.format("left")), shell("never", "echo never")], [shell("right", hangs.format("right"))]]
two_gpus.phases = lambda models, out, large: [first, second]
sys.argv = ["two_gpus.py", "--out", {str(tmp_path / "out")!r}]
sys.exit(two_gpus.main())
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        try:
            files = [tmp_path / "left", tmp_path / "right"]
            until = time.monotonic() + 60
            while time.monotonic() < until and not all(f.exists() and len(f.read_text().split()) == 2 for f in files):
                time.sleep(0.1)
            os.kill(process.pid, signal.SIGTERM)
            printed, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 143
    assert "| one | said | first |  |" in printed and "never" not in printed
    assert not (tmp_path / "out" / "never.txt").exists()
    for pid in " ".join(file.read_text() for file in files).split():
        assert not Path(f"/proc/{pid}").exists()
