"""What a child of a session does: its Python, a command, or a request about files."""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import cast

from .command import run_command
from .file_request import answer_file_request
from .files import open_root
from .limits import MIB, ChildLimits, core_size, lower
from .repl import serve_repl

NUM_OPEN_FILES = 512


def confine_session(uid: int, keeper: int, limits: ChildLimits) -> None:
    """Become the session's uid for good, with nothing of root left.

    keeper: another uid for our real and saved one, or the session's. Its processes may signal who shares one of
    these with them; so a child of the keeper's has the session's rights on files, and is out of its reach.
    """
    os.setsid()
    if keeper == uid:  # it gives way to the agent, and goes first when memory ends
        os.nice(19)
        with open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
            file.write(b"1000")
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(keeper, uid, keeper)
    os.umask(0o077)
    for kind, amount in (
        (resource.RLIMIT_AS, limits.memory_mib * MIB),
        (resource.RLIMIT_FSIZE, limits.file_mib * MIB),
        (resource.RLIMIT_NPROC, limits.processes),
        (resource.RLIMIT_NOFILE, NUM_OPEN_FILES),
        (resource.RLIMIT_CORE, core_size()),
    ):  # none on CPU time: a server in the background may use more of it in all than one call
        if keeper == uid or kind == resource.RLIMIT_CORE:
            lower(kind, amount)


def become(user: tuple[int, int, list[int]], keeper: int) -> None:
    """Become the user of a task's container, with the rights that the engine gives it there: uid, gid, groups.

    keeper: another uid for our real and saved one, for a child of ours; -1 for a process of the task's.
    """
    uid, gid, groups = user
    os.setsid()
    if keeper < 0:
        os.nice(19)
        with open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
            file.write(b"1000")
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(*(uid if keeper < 0 else keeper, uid, uid if keeper < 0 else keeper))
    os.umask(0o022)
    lower(resource.RLIMIT_CORE, core_size())


def run_session_child(op: str, fds: list[int]) -> int:
    """fds: the request, then as the operation needs them. Its exit code."""
    with open(fds[0], "rb") as file:
        request = json.loads(file.read())
    work = str(request["work"])
    if op == "files":
        with open(fds[1], "rb") as file:
            data = file.read()
        return answer_file_request(request, data, fds[2], fds[3])
    os.environ.clear()
    os.environ.update(cast("dict[str, str]", request["env"]))
    if op == "repl":
        os.fchdir(open_root(work))
        if request["own_python"]:
            serve_repl(fds[1])
        os.set_inheritable(fds[1], True)
        program = sys.orig_argv[sys.orig_argv.index("-c") + 1]  # ours, which holds every module of the agent
        program = program.replace("from agent.main import", "from agent.repl import")
        os.execvp("python3", ["python3", "-s", "-c", program, str(fds[1])])
    for target, fd in enumerate(fds[1:]):
        os.dup2(fd, target)
        os.close(fd)
    run_command(request["argv"], request["folder"], work, anywhere=request["anywhere"])
