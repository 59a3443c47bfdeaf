"""Build contexts: what a task's image is built from, its hash, and the images that its Dockerfile begins with."""

from __future__ import annotations

import hashlib
import json
import re
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from agentgym_sandboxes.docker.failures import ImageUnusable

_FROM = re.compile(r"^\s*FROM\s+(?:--platform=\S+\s+)?(\S+)(?:\s+AS\s+(\S+))?\s*$", re.IGNORECASE | re.MULTILINE)
_COPY_FROM = re.compile(r"^\s*(?:COPY|ADD)\s[^\n]*?--from=(\S+)", re.IGNORECASE | re.MULTILINE)
_ARG = re.compile(r"^\s*ARG\s+(\w+)=[\"']?([^\s\"']*)", re.IGNORECASE | re.MULTILINE)
_MOUNT = re.compile(r"^\s*RUN\s[^\n]*--mount=", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class BuildContext:
    """A folder of this machine, and the Dockerfile in it."""

    folder: str
    dockerfile: str = "Dockerfile"

    def __str__(self) -> str:
        return f"{self.folder}/{self.dockerfile}"

    def read(self) -> str:
        """The Dockerfile. Raises ImageUnusable where it is missing, or needs another builder."""
        try:
            text = (Path(self.folder) / self.dockerfile).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ImageUnusable(f"no image is built from {self}: it can't be read ({error})") from error
        if _MOUNT.search(text):
            raise ImageUnusable(
                f"no image is built from {self}: `RUN --mount` needs BuildKit, which the engine's API lacks; leave "
                "it out, or build the image with `docker buildx build` and name it in place of the folder"
            )
        return text

    def bases(self) -> tuple[str, ...]:
        """The images that it begins with or copies from, but not its own stages and `scratch`. Raises ImageUnusable."""
        text = self.read()
        given = dict(_ARG.findall(text.partition("FROM")[0]))
        stages = {"scratch"}
        found: list[str] = []
        for name, stage in _FROM.findall(text):
            base = re.sub(r"\$\{?(\w+)\}?", lambda match: given.get(match[1], match[0]), name)
            if base.lower() not in stages and base not in found:
                found.append(base)
            stages.add(stage.lower())
        copied = [name for name in _COPY_FROM.findall(text) if not name.isdigit() and name.lower() not in stages]
        return (*found, *dict.fromkeys(name for name in copied if name not in found))

    def key(self, bases: list[str]) -> str:
        """A hash of what is built: names, modes and contents, and the ids of the bases. Raises ImageUnusable."""
        digest = hashlib.sha256(json.dumps([self.dockerfile, bases]).encode())
        try:
            for name, path in self._files():
                info = path.lstat()
                kind = stat.S_IFMT(info.st_mode)
                target = str(path.readlink()) if stat.S_ISLNK(info.st_mode) else ""
                size = info.st_size if stat.S_ISREG(info.st_mode) else 0
                digest.update(json.dumps([name, kind, info.st_mode & 0o777, size, target]).encode())
                if stat.S_ISREG(info.st_mode):
                    with path.open("rb") as file:
                        digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise ImageUnusable(f"no image is built from {self}: {error}") from error
        return digest.hexdigest()[:24]

    def pack(self, archive: BinaryIO) -> None:
        """Write the context as a tar file, all of it root's."""
        with tarfile.open(fileobj=archive, mode="w") as packed:
            for name, path in self._files():
                info = packed.gettarinfo(path, name)
                info.uid = info.gid = info.mtime = 0
                info.uname = info.gname = ""
                if info.isreg():
                    with path.open("rb") as file:
                        packed.addfile(info, file)
                elif info.islnk():  # a second name of a file is a file of its own here
                    info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
                    with path.open("rb") as file:
                        packed.addfile(info, file)
                elif info.isdir() or info.issym():
                    packed.addfile(info)
        archive.seek(0)

    def _files(self) -> Iterator[tuple[str, Path]]:
        """By name, without what .dockerignore names."""
        from docker.utils.build import exclude_paths

        folder = Path(self.folder)
        ignore = folder / ".dockerignore"
        lines = ignore.read_text(encoding="utf-8").splitlines() if ignore.is_file() else []
        patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        for name in sorted(exclude_paths(str(folder), patterns, dockerfile=self.dockerfile)):
            if name:
                yield Path(name).as_posix(), folder / name
