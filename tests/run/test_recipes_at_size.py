"""benchmarks/recipes_at_size.py: its commands are right, and runs share the GPUs in the order of the list."""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from finishing import finished
from parsing import parsed
from shell_parts import shell

from agentgym.config import apply_overrides
from agentgym.run.layers import finish_sft
from agentgym.run.recipe_files import read_recipe_files

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


@pytest.fixture
def places(tmp_path: Path) -> Any:
    from qwen3_folder import NAMES, write_folder  # type: ignore[import-not-found]
    from recipes_at_size import MODELS, Places  # type: ignore[import-not-found]

    for model in MODELS.values():
        write_folder(NAMES[model], tmp_path / model)
    (tmp_path / "data").mkdir()
    for name in ("train", "test"):
        row = json.dumps({"question": f"{name}: one and one?", "answer": "1 + 1 = 2\n#### 2"})
        (tmp_path / "data" / f"{name}.jsonl").write_text(f"{row}\n")
    return Places(out=tmp_path, models=tmp_path, runs=tmp_path / "runs", data=tmp_path / "data")


def set_fields(words: list[str]) -> list[str]:
    return [field for word, field in pairwise(words) if word == "--set"]


def test_every_recipe_for_gpus_is_in_the_list_and_every_run_is_one_of_few_steps(places: Any) -> None:
    from recipes_at_size import MODELS, RUNS, command

    assert len({run.name for run in RUNS}) == len(RUNS)
    for kind in ("grpo", "sft"):
        listed = {run.recipe for run in RUNS if run.kind == kind}
        files = {file.stem for file in (ROOT / "apps" / kind).glob("*.yaml")}
        assert listed == {*MODELS, "smollm2_135m"} <= files
    for run in RUNS:
        words = command(run, places)
        files, fields = [Path(word) for word in words if word.endswith(".yaml")], set_fields(words)
        if run.kind == "sft":
            mapping, where = read_recipe_files(files)
            recipe: Any = finish_sft(apply_overrides(mapping, fields), where=where)[0]
            assert recipe.sft.steps == 8
        else:
            recipe = finished(files, fields)
            assert ("short" in str(recipe.rewards)) and recipe.rollout.max_turn_tokens == 256
        task = {"code_exec", "tool_use"} & {file.stem for file in files}
        assert recipe.env.name == (task.pop() if task else "math")
        if recipe.env.name == "math":
            assert recipe.env.options["path"] == str(places.data / "train.jsonl")
        assert run.recipe not in MODELS or recipe.model.path == str(places.models / MODELS[run.recipe])


@pytest.mark.hostile
def test_every_command_is_one_that_its_program_takes_and_whole_ones_fit_their_gpus(places: Any) -> None:
    from recipes_at_size import RUNS, command, weights

    for run in RUNS:
        words = command(run, places)
        if words[0] == "-m":
            gib = run.gib
            if run.recipe == "smollm2_135m":  # a package that tests do without
                words += ["--set", f"model.path={places.models / '0.6B'}"]
                gib = 79
            if run.kind == "grpo":  # benchmarks/ is not on the path here
                words += ["--set", "rewards={success: 1.0}"]
            words += ["--dry-run", "--gpus", str(run.gpus), "--gpu-memory", str(gib)]
        found = parsed(words, ROOT)
        assert found["code"] == 0, (run.name, found["errors"])
    draw = weights("8B", places).make([0]).command
    assert parsed(draw[draw.index(sys.executable) + 1 :], ROOT)["code"] == 0


def test_within_less_memory_vllm_takes_its_share_of_that_and_the_rest_is_held(places: Any) -> None:
    from recipes_at_size import RUNS, named, share_of, sized

    [run] = [run for run in RUNS if named(run, "grpo-qwen3_0.6b-one-small")]
    words = sized(run, replace(places, within=(23.0, 139.0))).make([0]).command
    python = words.index(sys.executable)
    script, gib, again, program = words[python + 1 : python + 5]
    assert (Path(script).name, gib, again) == ("within_memory.py", "23", sys.executable)
    assert Path(program).name == "loop_phases.py"
    fields = dict(field.split("=", 1) for field in set_fields(words))
    share = share_of([word for word in words if word.endswith(".yaml")])
    assert float(fields["generator.engine.gpu_memory_utilization"]) == pytest.approx(share * 23 / 139, rel=0.01)
    assert "gpu_memory_utilization" not in str(sized(run, places).make([0]).command)


def test_a_word_is_one_run_or_how_several_begin() -> None:
    from recipes_at_size import RUNS, named

    def chosen(word: str) -> set[str]:
        return {run.name for run in RUNS if named(run, word)}

    assert chosen("grpo-qwen3_1.7b") == {"grpo-qwen3_1.7b"} < chosen("grpo-qwen3_1.7b-") | {"grpo-qwen3_1.7b"}
    assert chosen("sft-") == {run.name for run in RUNS if run.kind == "sft"}
    assert chosen("") == {run.name for run in RUNS}


def test_a_command_has_what_is_left_of_each_gpu_and_its_most_is_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import within_memory  # type: ignore[import-not-found]

    gib, empty = 2**30, torch.empty
    free = [100 * gib, 60 * gib]
    looks: list[int] = []

    def hold(size: int, *, device: int, **_: object) -> torch.Tensor:
        free[device] -= size if size > 1 else gib // 2
        return empty(1)

    def info(gpu: int) -> tuple[int, int]:
        looks.append(gpu)
        return free[gpu] - (5 + gpu) * gib * (4 < len(looks) < 20), 139 * gib  # what the command takes for a while

    monkeypatch.setattr(within_memory.torch, "empty", hold)
    monkeypatch.setattr(within_memory.torch.cuda, "mem_get_info", info)
    monkeypatch.setattr(within_memory.torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(within_memory, "LOOK_EVERY_S", 0.01)
    within_memory.hold(2, 23.0)
    assert free == [23 * gib, 23 * gib]
    with pytest.raises(SystemExit, match=r"GPU 0 has 22\.5 GiB free: no 30 GiB to leave"):
        within_memory.hold(2, 30.0)
    looks.clear()
    free[:] = [100 * gib, 60 * gib]
    command = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(1); raise SystemExit(4)"]
    assert within_memory.run_watched(command, 2) == (4, [5.0, 6.0])
    assert "here" in capfd.readouterr().out


def test_a_run_begins_in_its_turn_once_its_gpus_are_free(tmp_path: Path) -> None:
    from recipes_at_size import Sized, run_in_order
    from two_gpus import Clock  # type: ignore[import-not-found]

    taken: dict[str, tuple[int, ...]] = {}
    began: list[str] = []
    lock = threading.Lock()

    def make(name: str, text: str, numbers: list[int]) -> Any:
        with lock:
            began.append(name)
            taken[name] = tuple(numbers)
        return shell(name, text)

    def wanted(name: str, gpus: int, text: str) -> Any:
        trash = tmp_path / f"{name}.checkpoint"
        text = f"mkdir -p {trash}; {text}"
        return Sized(name=name, gpus=gpus, make=partial(make, name, text), trash=trash)

    meets = f"touch {tmp_path}/{{}}; until [ -e {tmp_path}/{{}} ]; do sleep 0.05; done; echo met"
    parts = [
        wanted("left", 1, meets.format("a", "b")),
        wanted("right", 2, meets.format("b", "a")),
        wanted("both", 4, f"test ! -e {tmp_path}/later; echo alone; exit $?"),
        wanted("later", 1, f"touch {tmp_path}/later; echo late"),
        wanted("fails", 1, "exit 3"),
    ]
    (tmp_path / "left.checkpoint").mkdir()  # another list's
    found = dict(run_in_order(parts, 4, tmp_path, Clock()))
    assert taken["left"] == (0,) and taken["right"] == (1, 2) and taken["both"] == (0, 1, 2, 3)
    assert set(began[:2]) == {"left", "right"} and began[2] == "both" and set(began[3:]) == {"later", "fails"}
    assert {name: row[0] for name, row in found.items()} == dict.fromkeys(found, "said") | {"fails": "failed"}
    assert found["left"][1] == found["right"][1] == "met" and found["both"][1] == "alone"
    assert [file.name for file in tmp_path.glob("*.checkpoint")] == ["left.checkpoint"]


def test_what_runs_is_ended_with_the_list_and_nothing_else_begins(tmp_path: Path) -> None:
    from recipes_at_size import Sized, run_in_order
    from two_gpus import Clock

    def broken(numbers: object) -> Any:
        until = threading.Event()
        while not (tmp_path / "hangs").exists():
            until.wait(0.05)
        raise RuntimeError("the caller's own")

    def at(name: str, text: str) -> Any:
        return Sized(name=name, gpus=1, make=lambda _: shell(name, text))

    parts = [
        at("hangs", f"touch {tmp_path}/hangs; sleep 600"),
        Sized(name="broken", gpus=1, make=broken),
        at("never", f"touch {tmp_path}/never"),
    ]
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="the caller's own"):
        list(run_in_order(parts, 2, tmp_path, Clock()))
    assert time.monotonic() - began < 30, "it waited until the part that hangs was over its time"
    assert not (tmp_path / "never").exists()


def test_a_table_says_what_a_run_was_and_what_did_not_fit(
    places: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import recipes_at_size

    folder = tmp_path / "run"
    folder.mkdir()
    rows = [
        {"time/step_s": s, "train/gpu_peak_gib": 70 + s, "mismatch/engine_kl": s / 1e4, "sft/loss": 1 / s}
        for s in (50.0, 9.0, 4.0, 6.0)
    ]
    rows[-1]["generator/respawns_total"] = 1.0
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert recipes_at_size.run_rows(folder, "done\n", tmp_path) == [
        ("the first step", "50.0 s", ""),
        ("a later one, median without the second", "5.00 s", ""),
        ("trainer's peak, least and most", "74 to 120 GiB", ""),
        ("engine's mismatch, KL, least and most", "0.0004 to 0.005", ""),
        ("replicas that died", "1", "0"),
        ("loss, first and last", "0.02, 0.17", ""),
        ("said", "done", ""),
    ]
    gpus = [SimpleNamespace(memory_gib=79.2)] * 2
    monkeypatch.setattr(recipes_at_size, "this_machine", lambda: SimpleNamespace(gpus=gpus))
    began: list[str] = []
    monkeypatch.setattr(
        recipes_at_size, "run_in_order", lambda wanted, *_: began.extend(part.name for part in wanted) or iter(())
    )
    monkeypatch.setattr(sys, "argv", ["recipes_at_size.py", "--out", str(tmp_path / "out")])
    assert recipes_at_size.main() == 0
    left_out = {line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines() if "left out" in line}
    assert left_out == {run.name for run in recipes_at_size.RUNS if run.gpus > 2 or run.gib > 79}
    drawn = {name for name in began if name.startswith("draw-")}
    assert drawn == {f"draw-{model}" for name, model in recipes_at_size.MODELS.items() if "8b" not in name}
    monkeypatch.setattr(sys, "argv", ["recipes_at_size.py", "--only", "grpo-qwen3_8b"])
    with pytest.raises(SystemExit):
        recipes_at_size.main()
    assert "none fits 2 GPUs of 79 GiB" in capsys.readouterr().err
