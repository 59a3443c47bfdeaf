"""The verdict on a repository that an agent changed: its patch, applied and tested where no process of it ever ran.

What differs from the image is found in the second container, by the image's own git, from the files that the engine
took out of the agent's.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from agentgym.errors import InfraError
from agentgym.sandbox import FileRefused, Machine, RunStatus, Sandbox
from agentgym.types import SandboxSpec
from agentgym_envs.harbor.origin import limits_of
from agentgym_envs.swe.history import AT, GIT_S, PATHS, prepare
from agentgym_envs.swe.logs import Graded, graded, section
from agentgym_envs.swe.rows import Instance, files_of

CARRIED_BYTES: Final = 512 << 20
PATCH_BYTES: Final = 16 << 20
LOG_BYTES: Final = 64 << 20
NOT_CARRIED: Final = (".git", ".venv", "node_modules", ".tox", "__pycache__", "*.pyc")
_GIT: Final = "git() { command git -c safe.directory='*' -c core.excludesFile=" + AT + '/ignored "$@"; }\nset -e\n'
_COMPARE: Final = f"""{_GIT}
at=$(cd "$(git rev-parse --git-common-dir)" && pwd)
export GIT_DIR="$at" GIT_INDEX_FILE={AT}/index
git read-tree HEAD
GIT_WORK_TREE=$(pwd) git add -A .
base=$(git write-tree)
echo "$base" > {AT}/base
git ls-tree -z --name-only "$base" > {AT}/names
git read-tree "$base"
cd {AT}/tree
GIT_WORK_TREE={AT}/tree git add -A .
git diff-tree -r -z --no-renames "$base" "$(git write-tree)" > {AT}/changes
"""
_PATCH: Final = f"""{_GIT}
export GIT_INDEX_FILE={AT}/index
git update-index -z --replace --index-info < {AT}/undone
git diff-tree -p --binary --full-index --no-renames "$(cat {AT}/base)" "$(git write-tree)" > {AT}/agent.patch
"""
_APPLY: Final = f"""{_GIT}
[ -s "$1" ] || exit 0
git apply --whitespace=nowarn $2 "$1" || patch -p1 --batch --fuzz=5 -i "$1" ${{2:+-R}}
"""
_READ_BY_THEMSELVES: Final = (
    *("conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml"),
    *("sitecustomize.py", "usercustomize.py"),
)
_RUNNERS: Final = ("pytest", "_pytest", "pluggy", "unittest", "iniconfig", "packaging")


@dataclass(slots=True, kw_only=True)
class Judged:
    """fault: why there is no verdict: the tests' time ended, or no test was seen to run. patch: the agent's."""

    graded: Graded
    fault: str = ""
    patch: str = ""
    flags: list[str] = field(default_factory=list)
    output: str = ""


class Changed(Exception):
    """An agent's files can't be carried: the message says why."""


async def judge(sandbox: Sandbox, spec: SandboxSpec, instance: Instance, agent: Machine, *, timeout_s: float) -> Judged:
    """agent: the agent's container, of which all processes are ended. Raises InfraError for what is not the agent's."""
    await agent.end_processes()
    carried, refused = await _tree(agent, instance)
    async with sandbox.session_for(replace(spec, beside=True)) as session:
        if refused:
            if (own := (await _tree(session.machine, instance))[1]) != "":
                raise InfraError(f"{instance.name}: the repository of {instance.image} can't be carried: {own}")
            return _refused(f"not carried: {refused}")
        flags: list[str] = []
        try:
            patch = await _patch(session.machine, instance, carried, flags)
        except Changed as error:
            return _refused(str(error))
        judged = await _tested(session.machine, instance, patch, timeout_s=timeout_s)
        judged.flags[:0] = flags
        return judged


async def judge_patch(
    sandbox: Sandbox, spec: SandboxSpec, instance: Instance, *, gold: bool, timeout_s: float
) -> Judged:
    """The verdict on the row's own solution, or on nothing."""
    async with sandbox.session_for(replace(spec, beside=True)) as session:
        patch = (instance.bug or instance.patch) if gold else ""
        back = "-R" if gold and instance.bug else ""
        await prepare(session.machine, instance, cut=False)
        return await _tested(session.machine, instance, patch.encode(), timeout_s=timeout_s, back=back)


def undone(path: str, instance: Instance, *, new: bool, names: Collection[str]) -> bool:
    """Whether a changed file does not count: tests, and what Python or pytest read by themselves.

    new: it is not in the image. names: what the repository has at its top. What the solution changes, counts.
    """
    if path in files_of(instance.patch or instance.bug):
        return False
    parts = path.split("/")
    base, top = parts[-1], parts[0]
    if base in _READ_BY_THEMSELVES or "tests" in parts or path in files_of(instance.test_patch):
        return True
    if base == "tests.py" or (base.endswith(".py") and (base.startswith("test_") or base.endswith("_test.py"))):
        return True
    if new and top not in names and top.partition(".")[0] in _RUNNERS:
        return True
    return any(test.startswith(f"{path}::") for test in (*instance.must_pass, *instance.must_stay))


async def _tree(machine: Machine, instance: Instance) -> tuple[bytes, str]:
    """The repository's files, or why they can't be taken."""
    try:
        return await machine.get(instance.work, max_bytes=CARRIED_BYTES, exclude=NOT_CARRIED, keep_links=True), ""
    except FileRefused as error:
        return b"", str(error)


async def _patch(machine: Machine, instance: Instance, carried: bytes, flags: list[str]) -> bytes:
    """What the agent changed that counts, as a patch of the image's files. Raises Changed."""
    await prepare(machine, instance, cut=False)
    await machine.put(AT, {"ignored": "".join(f"{one}\n" for one in NOT_CARRIED).encode()}, replace=True)
    await machine.put(f"{AT}/tree", carried)
    ran = await machine.exec(["sh", "-c", _COMPARE], folder=instance.work, limits=limits_of(GIT_S))
    try:
        names = (await machine.get_file(f"{AT}/names", max_bytes=PATCH_BYTES)).decode(errors="surrogateescape")
    except FileRefused as error:
        raise InfraError(f"{instance.name}: the git of {instance.image} failed: {ran.stderr[-300:].strip()}") from error
    try:
        changes = await machine.get_file(f"{AT}/changes", max_bytes=PATCH_BYTES)
    except FileRefused as error:
        raise Changed(f"not carried: {error}; git: {ran.stderr[-300:].strip()}") from error
    if ran.exit_code != 0:  # what is in the agent's files made git fail
        raise Changed(f"not carried: git: {ran.stderr[-300:].strip()}")
    lines, top = [], {*names.split("\0")}
    for path, mode, number in _changes(changes):
        quiet = any(part in NOT_CARRIED for part in path.split("/")) or path.endswith(".pyc")
        if quiet or mode == "160000" or undone(path, instance, new=mode == "000000", names=top):
            lines.append(f"{'0' if mode == '000000' else mode} {number}\t{path}\0")
            flags += [] if quiet else [f"undone: {path}"]
    await machine.put(AT, {"undone": "".join(lines).encode(errors="surrogateescape")})
    ran = await machine.exec(["sh", "-c", _PATCH], folder=instance.work, limits=limits_of(GIT_S))
    if ran.exit_code != 0:
        raise Changed(f"not carried: git: {ran.stderr[-300:].strip()}")
    try:
        return await machine.get_file(f"{AT}/agent.patch", max_bytes=PATCH_BYTES)
    except FileRefused as error:
        raise Changed(f"not carried: {error}") from error


def _changes(raw: bytes) -> Iterator[tuple[str, str, str]]:
    """Of `git diff-tree -r -z`: the path, and the mode and the object that it had."""
    words = iter(raw.decode(errors="surrogateescape").split("\0"))
    for entry in words:
        if entry:
            mode, _, number, *_ = entry.removeprefix(":").split(" ")
            yield next(words), mode, number


async def _tested(machine: Machine, instance: Instance, patch: bytes, *, timeout_s: float, back: str = "") -> Judged:
    """Put the row's tests and a patch into a new container, and run the tests."""
    tests = b"" if instance.tests_in_script else instance.test_patch.encode()
    path = ":".join(posixpath.join(instance.work, one) for one in PATHS)
    files: Mapping[str, bytes] = {
        "ignored": b"",
        "tests.patch": tests,
        "agent.patch": patch,
        "apply.sh": _APPLY.encode(),
        "run.sh": f"export PATH={path}:$PATH\n{instance.script}\n".encode(),
    }
    await machine.put(AT, files, replace=True)
    for name, options in {"tests.patch": "", "agent.patch": back}.items():
        command = ["sh", f"{AT}/apply.sh", f"{AT}/{name}", options]
        ran = await machine.exec(command, folder=instance.work, limits=limits_of(GIT_S))
        if ran.exit_code != 0:
            said = f"{name} does not apply: {(ran.stderr or ran.stdout)[-300:].strip()}"
            if name == "tests.patch":
                raise InfraError(f"{instance.name}: the row's test_patch does not apply to {instance.image}: {said}")
            return _refused(said)
    ran = await machine.exec(
        f'"$(command -v bash || echo sh)" {AT}/run.sh > {AT}/log 2>&1',
        folder=instance.work,
        limits=limits_of(timeout_s),
    )
    await machine.end_processes()
    text = patch.decode(errors="replace")
    if ran.status is RunStatus.TIMEOUT:
        fault = f"the tests took longer than {timeout_s:g} s"
        return Judged(graded=Graded(resolved=False, broken=True, why=fault), fault=fault, patch=text)
    try:
        log = section((await machine.get_file(f"{AT}/log", max_bytes=LOG_BYTES)).decode(errors="replace"))
    except FileRefused as error:
        fault = f"no log of the tests: {error}"
        return Judged(graded=Graded(resolved=False, broken=True, why=fault), fault=fault, patch=text)
    found = graded(
        log, instance.parser, must_pass=instance.must_pass, must_stay=instance.must_stay, exit_code=ran.exit_code
    )
    return Judged(graded=found, fault=found.why if found.broken else "", patch=text, output=log[-2000:])


def _refused(why: str) -> Judged:
    return Judged(graded=Graded(resolved=False, why=why), flags=[why])
