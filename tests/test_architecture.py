"""The import rules hold, importing the gym stays light and quick, and no module grows too long."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE_ROOTS = {"agentgym": ".", "agentgym_envs": "envs", "agentgym_plugins": "plugins"}
SOURCE_ROOTS["agentgym_sandboxes"] = "sandboxes"
HEAVY = [
    "torch", "vllm", "monarch", "torchtitan", "torchstore", "docker", "datasets", "pydantic_monty",
    "transformers", "matplotlib", "tensorboard", "wandb", "gymnasium", "numpy",
]  # fmt: skip
TORCH_ROOMS = ("rl", "actors", "generators", "trainer", "weights", "models")
MAX_LINES = 400
MAX_IMPORT_S = 0.15


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(folder / root) for root in SOURCE_ROOTS.values())
    return subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_import_contracts_hold() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("agentgym/types.py", "import agentgym.hooks", "imports flow one way"),
        ("agentgym/rollout/config.py", "import agentgym.rl.config", "imports flow one way"),
        (
            "envs/agentgym_envs/math/answers.py",
            "import agentgym_plugins.rewards",
            "environments, plugins and sandboxes never import each other",
        ),
        (
            "plugins/agentgym_plugins/rewards.py",
            "import agentgym.rollout.scoring",
            "plugins import the public API only",
        ),
        (
            "agentgym/rollout/config.py",
            "def f():\n    import torchtitan",
            "only trainer imports torchtitan",
        ),
    ],
)
def test_a_forbidden_import_breaks_its_contract(
    module: str, line: str, contract: str, tmp_path: Path
) -> None:
    for package, root in SOURCE_ROOTS.items():
        shutil.copytree(
            ROOT / root / package, tmp_path / root / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / module).open("a") as file:
        file.write(f"\n{line}\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{contract} BROKEN" in " ".join(done.stdout.split())


def modules(*folders: str) -> Iterator[tuple[Path, ast.Module]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT), ast.parse(path.read_text())


def imported(tree: ast.Module) -> set[str]:
    names = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}


def test_only_the_rooms_of_training_and_sampling_import_torch() -> None:
    importers = {
        path
        for path, tree in modules("agentgym", "envs", "plugins", "sandboxes")
        if "torch" in imported(tree)
    }
    assert importers  # or this test looks at the wrong places
    allowed = [Path("agentgym", room) for room in TORCH_ROOMS]
    assert [p for p in importers if not any(p.is_relative_to(folder) for folder in allowed)] == []


def test_importing_the_gym_with_all_its_plugins_loads_nothing_heavy() -> None:
    report = json.loads(
        python(
            "import json, sys, agentgym\n"
            "registry = agentgym.hooks.PluginRegistry.discover()\n"
            "registry.load_all()\n"
            f"heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
            "own = [r for r in registry.records if r.distribution == 'agentgym']\n"
            "print(json.dumps([heavy, {r.name: r.status for r in own}]))"
        )
    )
    heavy, statuses = report
    assert heavy == []
    assert set(statuses.values()) == {"loaded"} and len(statuses) >= 7, statuses


def test_importing_agentgym_is_quick() -> None:
    """In processor time, which is what it takes where nothing else runs."""
    code = "import time; t = time.process_time(); import agentgym; print(time.process_time() - t)"
    assert min(float(python(code)) for _ in range(5)) <= MAX_IMPORT_S


def test_no_module_is_too_long() -> None:
    folders = ("agentgym", "envs", "plugins", "sandboxes", "apps", "benchmarks", "tests")
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
    }
    assert len(lengths) > 30
    assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES} == {}
