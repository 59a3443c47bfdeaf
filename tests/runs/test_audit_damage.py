"""Files of a run that are damaged or foreign: each is a fault that the auditor names, and never its end."""

from __future__ import annotations

import gzip
import json
import os
import random
import struct
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from agentgym.errors import UserError
from agentgym.runs.audit import audit
from agentgym.runs.files import append_line

pytestmark = pytest.mark.usefixtures("no_engine")


def _device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _sparse(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(1 << 40)


def _written(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut in the middle": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "random bytes": lambda path: path.write_bytes(random.Random(5).randbytes(5000)),
    "a header of 2^62 bytes": lambda path: path.write_bytes(struct.pack("<Q", 1 << 62) + b"{}"),
    "a list": _written(b"[1, 2]\n"),
    "null": _written(b"null\n"),
    "foreign JSON": _written(b'{"step": "x", "episode": 5, "w": {"data_offsets": 7}, "setup": [], "result": 1}\n'),
    "numbers beyond all": _written(
        b'{"step": 1000000000000000, "next_group": 1e999, "group_id": -1, "index": 1e999, "trained": 1, '
        b'"files": {"a": 1}, "setup": {"num_tasks": 1e999}, "result": 1, "episode": {"episode_id": 1, "turns": []}, '
        b'"process": [1]}\n'
    ),
    "nested deep": _written(b"[" * 200_000 + b"\n"),
    "what moves a cursor": _written(b'{"step": "\\u001b[2J", "episode": {"episode_id": "\\u001b[2J"}}\n'),
    "a terabyte of zeros": _sparse,
    "a folder": _folder,
    "a FIFO": _fifo,
    "a link to a device": _device,
    "a link to itself": _loop,
}  # fmt: skip
FILES = (
    "metrics.jsonl", "starts.jsonl", "config.yaml", "state.json", "comparison.json", "status.json", "lock",
    "episodes/step-000002.jsonl.gz", "evals/step-000003.json", "evals/step-000003.jsonl.gz",
    "checkpoints/step-000003/position.json", "checkpoints/step-000003/trainer/manifest.json",
    "checkpoints/step-000003/hf/model.safetensors",
)  # fmt: skip
PAIRS = [one for one in product(DAMAGE, FILES) if one[0] != "a terabyte of zeros" or one[1] in FILES[::4]]  # slow
QUICK = [(damage, FILES[(7 * n) % len(FILES)]) for n, damage in enumerate(DAMAGE)][::2]
ALL = [pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.hostile) for pair in PAIRS]


@pytest.mark.parametrize(("damage", "name"), ALL)
def test_a_damaged_or_foreign_file_is_a_fault_and_never_the_end_of_the_audit(damage: str, name: str, run: Path) -> None:
    config = {"loop": {"group_size": 4, "max_staleness": 1}, "eval": {"at_end": True}}
    append_line(run / "starts.jsonl", json.dumps({"step": 0, "config": config}))
    DAMAGE[damage](run / name)
    try:
        found = audit(run)
    except UserError:
        assert name == "status.json"  # without which it is no run
    else:
        assert found.findings or found.notes or name in ("starts.jsonl", "config.yaml", "lock", "status.json")
        assert "\x1b" not in str([*found.findings, *found.notes])


def test_names_that_no_run_gives_are_left_out(run: Path) -> None:
    for folder, name in (("episodes", "step-x.jsonl.gz"), ("evals", "step-².json"), ("checkpoints", "step-0x1")):
        (run / folder / name).mkdir()
    found = audit(run)
    assert (found.findings, len(found.notes)) == ([], 2)
