"""The system call filter: the Docker sandbox's allow list and a little less, compiled by libseccomp."""

from __future__ import annotations

import errno
import json
import os
from functools import cache
from typing import Any, cast

from agentgym.sandbox import SandboxUnavailable
from agentgym_sandboxes.host.seccomp import seccomp_text

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "riscv64": "riscv64", "s390x": "s390x", "ppc64le": "ppc64le"}
_OURS = {"prlimit64": [{"index": 0, "op": "SCMP_CMP_EQ", "value": 0}]}
"""Conditions besides: a call shares its uid with the keeper, whose limits it must not change."""


@cache
def filter_program() -> bytes:
    """The filter as the kernel takes it, for this machine's own architecture only.

    A call by another (32-bit x86, say) ends the process. Raises SandboxUnavailable when libseccomp is missing.
    """
    try:
        import pyseccomp
    except (ImportError, RuntimeError) as error:  # RuntimeError: its library is missing
        raise SandboxUnavailable(
            f"system calls can't be filtered: {error}. Install it with `pip install pyseccomp` and, "
            "on Debian, `apt install libseccomp2`."
        ) from error
    profile = json.loads(seccomp_text())
    built = pyseccomp.SyscallFilter(pyseccomp.ERRNO(profile.get("defaultErrnoRet", errno.EPERM)))
    architecture = _ARCHITECTURES.get(os.uname().machine, os.uname().machine)
    for rule in profile["syscalls"]:
        if not _applies(rule, architecture):
            continue
        for name in rule["names"]:
            number = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)
            if number < 0:
                continue  # not of this architecture, or newer than the library: refused by default
            conditions = [*rule.get("args", []), *_OURS.get(name, [])]
            arguments = [_argument(pyseccomp, condition) for condition in conditions]
            built.add_rule(_action(pyseccomp, rule), number, *arguments)
    with os.fdopen(os.memfd_create("filter"), "w+b") as file:
        built.export_bpf(file)
        file.seek(0)
        return file.read()


def _applies(rule: dict[str, Any], architecture: str) -> bool:
    """Whether a rule is meant for a process without capabilities on this architecture."""
    includes, excludes = rule.get("includes", {}), rule.get("excludes", {})
    if includes.get("caps") or architecture in excludes.get("arches", ()):
        return False
    return "arches" not in includes or architecture in includes["arches"]


def _action(library: Any, rule: dict[str, Any]) -> int:
    if rule["action"] == "SCMP_ACT_ALLOW":
        return cast(int, library.ALLOW)
    assert rule["action"] == "SCMP_ACT_ERRNO", rule
    return cast(int, library.ERRNO(rule.get("errnoRet", errno.EPERM)))


def _argument(library: Any, condition: dict[str, Any]) -> Any:
    if condition["op"] == "SCMP_CMP_MASKED_EQ":  # `value` is the mask, and what must be left of it is valueTwo
        masked = condition.get("valueTwo", 0)
        return library.Arg(condition["index"], library.MASKED_EQ, condition["value"], masked)
    operator = getattr(library, condition["op"].removeprefix("SCMP_CMP_"))  # EQ, NE, LT, LE, GT, GE
    return library.Arg(condition["index"], operator, condition["value"])
