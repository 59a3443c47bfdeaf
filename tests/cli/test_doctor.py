"""`agentgym doctor`: each check, and the exit code."""

from __future__ import annotations

import io
import json
import os
import socket
from pathlib import Path

import pytest
import torch

from agentgym.cli.checks import (
    PACKAGES,
    Check,
    Level,
    Package,
    check_engines,
    check_gpus,
    check_hub,
    check_need,
    check_package,
    check_python,
    check_sandboxes,
    check_sockets,
    check_space,
)
from agentgym.cli.jobs import JobShell
from agentgym.cli.main import main
from agentgym.commands.text import memory
from agentgym.hooks import PluginRegistry, hookimpl
from agentgym.sandbox import Capabilities
from agentgym.testing import FakeSandbox

TORCH = Package(
    distribution="torch", tested="2.13.", level=Level.MISSING, remedy="install", alternatives=("torch-cpu",)
)


@pytest.mark.parametrize(
    ("installed", "level", "found"),
    [
        ({"torch": "2.13.0+cpu"}, Level.OK, "2.13.0+cpu"),
        ({"torch-cpu": "2.13.1"}, Level.OK, "2.13.1 (torch-cpu)"),
        ({"torch": "2.12.0"}, Level.NOTE, "2.12.0"),
        ({}, Level.MISSING, "not installed"),
    ],
)
def test_a_package_is_there_old_or_missing(installed: dict[str, str], level: Level, found: str) -> None:
    check = check_package(TORCH, installed.get)
    assert (check.level, check.found) == (level, found)
    assert bool(check.remedy) == (level is not Level.OK)


@pytest.mark.parametrize(("version", "level"), [("7.2.0", Level.OK), ("6.1", Level.NOTE), (None, Level.NOTE)])
def test_what_a_sandbox_declares_to_need_is_looked_for(version: str | None, level: Level) -> None:
    check = check_need("crate>=7.1", "box", {"crate": version}.get)
    assert (check.level, check.found) == (level, version or "not installed")
    assert (check.remedy == "") == (level is Level.OK) and check.remedy in (
        "",
        "pip install 'crate>=7.1' (for the sandbox box)",
    )


def test_an_old_python_is_missing_a_new_one() -> None:
    assert check_python((3, 10, 4)).level is Level.MISSING
    assert check_python((3, 11, 0)).level is Level.OK


def test_too_little_space_says_how_much_is_needed(tmp_path: Path) -> None:
    assert check_space("disk", tmp_path, 0.0, "make room").level is Level.OK
    short = check_space("disk", tmp_path, 1e9, "make room")
    assert short.level is Level.MISSING and "make room; needed are 1e+09 GiB" in short.remedy
    assert check_space("disk", tmp_path / "gone", 1.0, "make room").level is Level.MISSING


@pytest.mark.parametrize(
    ("gib", "shown"), [(0.0, "0 MiB"), (0.0625, "64 MiB"), (0.9996, "1.0 GiB"), (1.0, "1.0 GiB"), (79.19, "79.2 GiB")]
)
def test_a_little_memory_is_shown_in_mib(gib: float, shown: str) -> None:
    assert memory(gib) == shown


def test_a_gpu_that_torch_can_not_use_is_noted_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA H100, 81559 MiB, 20480 MiB'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert check_gpus() == Check("gpu", Level.OK, "NVIDIA H100, 81559 MiB, 20480 MiB free")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    noted = check_gpus()
    assert noted.level is Level.NOTE and "20480 MiB free, but torch can't use it" in noted.found
    assert "CUDA_VISIBLE_DEVICES is ''" in noted.found and noted.remedy


@pytest.mark.parametrize(
    ("installed", "level", "shown"),
    [(("torch", "transformers"), Level.OK, "native, transformers"), (("numpy",), Level.MISSING, "none can sample")],
)
def test_the_engines_are_those_whose_packages_are_here(installed: tuple[str, ...], level: Level, shown: str) -> None:
    check = check_engines(lambda module: module in installed)
    assert (check.level, check.found, bool(check.remedy)) == (level, shown, level is Level.MISSING)


def test_the_hub_is_the_one_that_is_set_and_a_silent_one_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert check_hub().level is Level.OK
    gone = check_hub()
    assert gone.level is Level.NOTE and "cannot be reached" in gone.found and "HF_ENDPOINT" in gone.remedy
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "unset HF_HUB_OFFLINE" in check_hub().remedy


def test_every_package_says_how_to_get_it() -> None:
    assert all(package.remedy for package in PACKAGES)


class Plugin:
    @hookimpl
    def sandboxes(self):
        refusing = FakeSandbox(unavailable="no engine answers. Run `start it`, then `build it`.")
        unsafe = FakeSandbox(able=Capabilities(backend="unsafe", detail="a plain process"))
        return {"refusing": lambda options: refusing, "unsafe": lambda options: unsafe}


async def test_a_sandbox_that_can_not_be_had_says_what_to_run_and_an_unsafe_one_does_not_count() -> None:
    registry = PluginRegistry([])
    registry.register(Plugin(), "two")
    refusing, unsafe, verdict = await check_sandboxes(registry)
    assert refusing.remedy == "start it\nbuild it"
    assert unsafe.level is Level.NOTE and "contains nothing" in unsafe.found
    assert verdict.level is Level.MISSING and "agentgym sandbox doctor" in verdict.remedy


def test_the_report_names_sandboxes_and_plugins_and_its_code_says_whether_all_is_there(cli) -> None:
    end = cli("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(end.out)}
    assert checks["sandbox echo"]["level"] == "ok" and checks["plugins"]["found"] == "1, all load"
    missing = [check for check in checks.values() if check["level"] == "missing"]
    assert end.code == (1 if missing else 0)
    text = cli("doctor").out
    assert "python" in text and "/dev/shm" in text


def test_what_it_found_fits_the_terminal(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    cli.plugins = PluginRegistry.discover  # their sandboxes say much
    main(["doctor"], JobShell(out=out, err=out, jobs=lambda: cli.jobs, plugins=cli.plugins))
    found = [line for line in out.getvalue().splitlines() if ">" not in line]
    assert found and max(map(len, found)) <= 80


def test_a_folder_of_temporary_files_that_takes_no_sockets_is_missing(tmp_path: Path, monkeypatch) -> None:
    assert check_sockets().level is Level.OK
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    found = check_sockets()
    assert found.level is Level.MISSING and "no file can be made" in found.found and "TMPDIR=/tmp" in found.remedy
