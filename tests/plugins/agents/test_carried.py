"""A program that is carried into a session has its own loader and libraries; what can not be carried is named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym.errors import UserError
from agentgym_plugins.agents.carried import AT, Carried


def test_a_copy_names_its_own_loader_which_looks_for_libraries_nowhere_else(tmp_path: Path) -> None:
    bash = Path(shutil.which("bash") or "").resolve()
    carried = Carried.of(bash, None)
    folder = carried.folder(tmp_path)
    assert carried.words[-1] == f"{AT}/bin/bash" and (folder / "bin" / "bash").stat().st_size == bash.stat().st_size
    loader = (folder / "ld.so").read_bytes()
    assert f"{AT}/ld.so\0".encode() in (folder / "bin" / "bash").read_bytes()
    assert b"-linux-gnu/\0" not in loader and b"/etc/ld.so." not in loader
    assert (folder / "lib" / "libc.so.6").is_file()
    loaded = subprocess.run(
        [folder / "ld.so", "--library-path", folder / "lib", folder / "bin" / "bash", "-c", "echo well"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert loaded.stdout == "well\n"


def test_a_folder_is_made_once_and_replaced_when_its_program_changes(tmp_path: Path) -> None:
    package, cache = tmp_path / "package", tmp_path / "cache"
    (package / "bin").mkdir(parents=True)
    (package / "package.json").write_text("{}")
    script = package / "bin" / "agent.js"
    script.write_text("#!/usr/bin/env -S node --no-warnings\nconsole.log(1)\n")
    node = tmp_path / "node"
    node.write_text("#!/bin/sh\n")
    node.chmod(0o755)
    (tmp_path / "link").symlink_to(script)  # as npm makes one
    carried = Carried.of(tmp_path / "link", str(tmp_path))
    assert carried.words[-3:] == (f"{AT}/bin/node", "--no-warnings", f"{AT}/package/bin/agent.js")
    first = carried.folder(cache)
    mark = first / "mark"
    mark.touch()
    left = cache / ".package-killed"  # not of this program
    left.mkdir()
    assert carried.folder(cache) == first and mark.exists()
    os.utime(script, ns=(1, 1))
    second = carried.folder(cache)
    assert second != first and set(cache.iterdir()) == {second, left}
    assert (second / "package" / "bin" / "agent.js").read_text() == script.read_text()


def test_a_program_of_another_kind_is_named(tmp_path: Path) -> None:
    script = tmp_path / "agent"
    script.write_text(f"#!{sys.executable}\n")
    with pytest.raises(UserError, match=r"agent' is neither a program of Linux .*; leave agent.where at process"):
        Carried.of(script, None)
