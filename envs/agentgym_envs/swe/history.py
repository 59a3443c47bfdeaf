"""The repository as a row means it: at the base commit, and for the agent without what came after it."""

from __future__ import annotations

from typing import Final

from agentgym.errors import InfraError
from agentgym.sandbox import Machine
from agentgym_envs.harbor.origin import limits_of
from agentgym_envs.swe.rows import Instance

AT: Final = "/agentgym-swe"  # where files of ours are in a container
GIT_S: Final = 600.0  # that git may take
PATHS: Final = ".venv/bin", "/opt/miniconda3/envs/testbed/bin"  # where images of these data sets have their Python
_SCRIPT: Final = r"""set -e
git() { command git -c safe.directory='*' -c user.name=agentgym -c user.email=agentgym@localhost "$@"; }
command -v git > /dev/null || { echo "the image has no git" >&2; exit 1; }
base=$(git rev-parse -q --verify "${1:-HEAD}^{commit}") ||
  { echo "the repository in $(pwd) has no commit ${1:-HEAD}" >&2; exit 1; }
# images of SWE-bench have their setup as one commit on the base
if [ "$(git rev-parse HEAD)" != "$base" ]; then
  [ "$(git log -1 --format=%s)$(git rev-parse -q --verify 'HEAD^')" = "SWE-bench$base" ] || git checkout -q -f "$base"
fi
git checkout -q --detach
if [ -s AT/bug.patch ]; then  # a commit of its own would show the solution
  git apply --whitespace=nowarn AT/bug.patch
  git checkout -q --orphan agentgym-base
  git commit -q -a -m Base --no-verify
  git checkout -q --detach
fi
[ "$2" = cut ] || exit 0
git for-each-ref --format='delete %(refname)' | git update-ref --no-deref --stdin
git checkout -q -b main
for name in $(git remote); do git config --remove-section "remote.$name"; done
at=$(git rev-parse --git-common-dir)
rm -rf "$at"/logs "$at"/worktrees "$at"/*_HEAD "$at"/objects/info/commit-graph* "$at"/objects/pack/*.keep
git repack -q -a -d
rm -f "$at"/objects/info/alternates
git prune --expire=now
"""


async def prepare(machine: Machine, instance: Instance, *, cut: bool) -> None:
    """cut: remove all that the base commit does not reach. Raises InfraError for an image that does not fit the row."""
    await machine.put(AT, {"bug.patch": instance.bug.encode(), "history.sh": _SCRIPT.replace("AT/", f"{AT}/").encode()})
    command = ["sh", f"{AT}/history.sh", instance.base, "cut" if cut else ""]
    ran = await machine.exec(command, folder=instance.work, limits=limits_of(GIT_S))
    if ran.exit_code != 0:
        said = (ran.stderr or ran.stdout)[-300:].strip() or ran.status.value
        raise InfraError(f"{instance.name}: the image {instance.image} can't be used: {said}")
    await machine.exec(["rm", "-rf", AT], limits=limits_of(GIT_S))
