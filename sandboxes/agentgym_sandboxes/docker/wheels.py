"""Fetches packages for the Python of an image, with the pip of our own: the image has no pip and no network."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from agentgym.errors import InfraError, UserError
from agentgym_sandboxes.docker.requirements import Requirement
from agentgym_sandboxes.host.command import CommandFailed, run_command

PIP_TIMEOUT_S = 900.0
_OLDEST_GLIBC = 5  # of 2.x: manylinux begins there
_NO_NETWORK = ("NewConnectionError", "NameResolutionError", "ConnectTimeoutError", "ReadTimeoutError", "ProxyError",
               "SSLError", "MaxRetryError")  # fmt: skip

ASK = """
import json, os, platform, site, sys, sysconfig
try:
    libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
except (OSError, ValueError):
    libc = ""
print(json.dumps({
    "version": platform.python_version(), "implementation": sys.implementation.name, "libc": libc,
    "abi": sysconfig.get_config_var("SOABI") or "", "machine": platform.machine(),
    "folder": site.getsitepackages()[0],
}))
"""
"""A program that prints what `ImagePython.of` reads."""
FIND = "import sys, importlib.metadata as m; print(*map(m.version, sys.stdin.read().split()))"
"""A program that fails when a package that its input names is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePython:
    """The `python3` of an image. libc: as glibc 2.36, or empty for another. folder: where packages go."""

    version: str
    abi: str
    machine: str
    libc: str
    folder: str

    @classmethod
    def of(cls, printed: str) -> ImagePython:
        """Read what `ASK` printed. Raises InfraError for another Python than CPython."""
        facts = json.loads(printed)
        abi = str(facts["abi"]).split("-")
        if facts["implementation"] != "cpython" or abi[0] != "cpython" or len(abi) < 2:
            raise InfraError(
                f"packages can't be added to this image: its Python is {facts['implementation']} {facts['version']}, "
                "and only CPython is known here. Install them in an image of your own."
            )
        return cls(
            version=str(facts["version"]),
            abi=f"cp{abi[1]}",
            machine=str(facts["machine"]),
            libc=str(facts["libc"]),
            folder=str(facts["folder"]),
        )

    @property
    def platforms(self) -> list[str]:
        """Names of what its wheels may be built for, the newest first: pip itself takes each for that one alone."""
        found = re.fullmatch(r"glibc 2\.(\d+)", self.libc)
        if found is None:
            return [f"musllinux_1_{minor}_{self.machine}" for minor in (2, 1, 0)]
        newest = int(found[1])
        named = [f"manylinux_2_{minor}_{self.machine}" for minor in range(newest, _OLDEST_GLIBC - 1, -1)]
        return [*named, f"manylinux2014_{self.machine}", f"linux_{self.machine}"]

    def __str__(self) -> str:
        return f"Python {self.version} on {self.machine}"


def pip_command(python: ImagePython, requirements: Sequence[Requirement], target: Path) -> list[str]:
    """Wheels only: to build one would need a compiler of the image's kind, and would run its code here."""
    platforms = [word for platform in python.platforms for word in ("--platform", platform)]
    return [
        sys.executable, "-m", "pip", "install", "-vv", "--progress-bar=off", "--no-input", "--no-color",
        "--disable-pip-version-check", "--root-user-action=ignore", "--retries=2", "--no-compile",
        f"--target={target}", "--only-binary=:all:", "--implementation=cp", f"--python-version={python.version}",
        f"--abi={python.abi}", *platforms, *map(str, requirements),
    ]  # fmt: skip


async def fetch(python: ImagePython, requirements: Sequence[Requirement], target: Path) -> tuple[str, ...]:
    """Put packages and what they need into a folder; each with its version, as numpy==2.3.1.

    Raises UserError for what is unavailable, InfraError when the index can't be reached.
    """
    env = {**os.environ, "PIP_USER": "0"}  # a user's own setting, which does not go with a target
    try:
        await run_command(pip_command(python, requirements, target), PIP_TIMEOUT_S, env)
    except CommandFailed as error:
        raise explained(error.output, python, requirements) from error
    found = importlib.metadata.distributions(path=[str(target)])
    return tuple(sorted(f"{canonicalize_name(one.metadata['Name'])}=={one.version}" for one in found))


def explained(output: str, python: ImagePython, requirements: Sequence[Requirement]) -> InfraError | UserError:
    """What pip's failure means, and what to do; its verbose output is needed for this."""
    lines = output.splitlines()
    telling = [line for line in lines if line.startswith(("ERROR:", "WARNING: Retrying")) or " depends on " in line]
    said = "\n".join(map(_short, telling[-8:] or lines[-8:]))
    what = f"pip could not get {' '.join(map(str, requirements))} for {python}"
    if "No module named pip" in output:
        return UserError(f"{what}: there is no pip beside agentgym. Install it: `{sys.executable} -m ensurepip`")
    if any(sign in output for sign in _NO_NETWORK):
        return InfraError(
            f"{what}: it can't reach the index. Where there is another, name it in PIP_INDEX_URL; without a "
            f"network, put wheels into a folder and set PIP_NO_INDEX=1 and PIP_FIND_LINKS to it. pip said:\n{said}"
        )
    missing = re.search(r"No matching distribution found for (\S+)", output)
    if missing is not None:
        return UserError(f"{what}: {_why_missing(missing[1], output, python)} pip said:\n{said}")
    conflict = "ERROR: ResolutionImpossible" in output
    return UserError(f"{what}{': they do not go together' if conflict else ''}. pip said:\n{said}")


def _why_missing(wanted: str, output: str, python: ImagePython) -> str:
    name = canonicalize_name(re.split(r"[^A-Za-z0-9._-]", wanted)[0])
    if "from versions: none" not in output:
        return f"there is no wheel of {wanted} for {python.abi}; below are the versions that have one."
    others = ("Skipping link: none of the wheel's tags", "Skipping link: No sources permitted")
    if any(line.lstrip().startswith(others) and f"{name}-" in canonicalize_name(line) for line in output.splitlines()):
        return (
            f"no version of {name} has a wheel for {python.abi}, and nothing is built from source here. Ask for "
            "another package, or install it in an image of your own and name that in sandbox.options.image."
        )
    return f"there is no package {name!r}. Is it spelled as on the index?"


def _short(line: str) -> str:
    """An error may list a hundred versions, the newest last."""
    return line if len(line) <= 400 else f"{line[:120]} ... {line[-260:]}"
