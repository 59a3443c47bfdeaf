"""A command-line program as a folder that runs in any Linux image: it brings its loader, its libraries and its Node.

The loader of a copy is not the image's: the copy names ours, and ours looks for libraries beside itself and nowhere
else. No variable is set for that, so programs of the image that it starts find the image's own.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agentgym.errors import UserError

AT: Final = "/.agent"  # in a session; short, because it has to fit where the loader's path is in a program
EXTRAS: Final = ("bash", "rg")  # at the end of PATH: agents start them, and small images lack them
_LEFT_S: Final = 3600.0
_REVISION: Final = 2  # of what is made of a program
_LOADER: Final = f"{AT}/ld.so"
_LOCALES: Final = b"/usr/lib/locale"
_SYSTEM_FOLDER: Final = re.compile(rb"(?:/usr)?/lib/[a-z0-9_]+-linux-gnu/(?=\0)")
_START: Final = f'PATH="$PATH:{AT}/path"; SHELL="$(command -v bash || command -v sh)"; export PATH SHELL; exec "$@"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What of a program is carried. file: an ELF file. package: of a script for Node, whose path in it is `script`."""

    file: Path
    package: Path | None = None
    script: str = ""
    flags: Sequence[str] = ()

    @classmethod
    def of(cls, program: Path, path: str | None) -> Carried:
        """path: where Node is looked for; None is our PATH. Raises UserError for a program of another kind."""
        program = program.resolve()
        with program.open("rb") as file:
            head = file.read(256)
        if head.startswith(b"\x7fELF"):
            return cls(file=program)
        words = shlex.split(head.partition(b"\n")[0].decode("utf-8", "replace").removeprefix("#!"))
        names = [n for n, word in enumerate(words) if Path(word).name == "node"]
        package = next((one for one in program.parents if (one / "package.json").is_file()), None)
        node = shutil.which("node", path=path)
        if not head.startswith(b"#!") or not names or package is None or node is None:
            raise UserError(
                f"agent.where is session, and {str(program)!r} is neither a program of Linux (ELF) nor a script of "
                "an npm package with a node on PATH, which could be carried into one; leave agent.where at process"
            )
        script = program.relative_to(package).as_posix()
        return cls(file=Path(node).resolve(), package=package, script=script, flags=words[names[0] + 1 :])

    @property
    def words(self) -> tuple[str, ...]:
        """What starts it in a session that has the folder at `AT`; arguments follow."""
        scripts = () if self.package is None else (*self.flags, f"{AT}/package/{self.script}")
        return "sh", "-c", _START, "sh", f"{AT}/bin/{self.file.name}", *scripts

    def folder(self, cache: Path) -> Path:
        """The folder, which is made below the cache unless it is there. Earlier ones of the same program are removed.

        Raises UserError where the loader of this machine is not known.
        """
        extras = [Path(found).resolve() for found in map(shutil.which, EXTRAS) if found is not None]
        sources = [self.file, *extras, *(_files(self.package) if self.package is not None else ())]
        stats = [(str(one), one.lstat().st_size, one.lstat().st_mtime_ns) for one in sources]
        name = f"{(self.package or self.file).name}-{_digest([str(self.package or self.file)])[:8]}"
        made = cache / f"{name}-{_digest([_REVISION, stats])}"
        if made.is_dir():
            return made
        cache.mkdir(parents=True, exist_ok=True)
        for left in cache.glob(f".{name}-*"):  # by a run that was killed
            if left.stat().st_mtime < time.time() - _LEFT_S:
                shutil.rmtree(left, ignore_errors=True)
        making = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache))
        try:
            self._make(making, extras)
            making.chmod(0o755)
            for earlier in cache.glob(f"{name}-*"):
                shutil.rmtree(earlier, ignore_errors=True)
            try:
                making.rename(made)
            except OSError:  # another run was faster
                if not made.is_dir():
                    raise
        finally:
            shutil.rmtree(making, ignore_errors=True)
        return made

    def _make(self, folder: Path, extras: Sequence[Path]) -> None:
        for name in ("bin", "lib", "path"):
            (folder / name).mkdir()
        _carry(self.file, folder / "bin" / self.file.name, folder)
        for extra in extras:
            _carry(extra, folder / "path" / extra.name, folder)
        locale = Path(_LOCALES.decode()) / "C.utf8"
        if locale.is_dir():  # or bash warns, at each command, that there is none
            shutil.copytree(locale, folder / "locale" / "C.utf8")
        if self.package is not None:
            shutil.copytree(self.package, folder / "package", symlinks=True)


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentgym" / "programs"


def _files(package: Path) -> Iterator[Path]:
    for one in sorted(package.rglob("*")):
        if one.is_symlink() or one.is_file():
            yield one


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _carry(program: Path, copy: Path, folder: Path) -> None:
    """Copy a program; one that needs libraries gets them, and a loader that finds them. Raises UserError."""
    shutil.copyfile(program, copy)
    copy.chmod(0o755)
    found = _loader_of(program)
    if found is None:
        return  # static, or a script
    offset, size, loader = found
    own = _LOADER.encode()
    listed = subprocess.run([loader, "--list", program], capture_output=True, text=True, check=False)
    data = Path(loader).read_bytes()
    folders = _SYSTEM_FOLDER.findall(data)
    if listed.returncode or not folders or len(own) >= size:
        why = listed.stderr.strip() or f"its loader {loader} is not one of Debian or Ubuntu"
        raise UserError(f"agent.where is session, and {str(program)!r} can't be carried into one: {why}")
    for line in listed.stdout.splitlines():
        words = line.split()
        if "=>" in words:
            library = Path(words[2]).read_bytes().replace(_LOCALES + b"\0", _moved("locale", _LOCALES) + b"\0")
            (folder / "lib" / words[0]).write_bytes(library)
    data = _SYSTEM_FOLDER.sub(lambda one: _moved("lib", one[0]), data)
    for file in (b"/etc/ld.so.cache", b"/etc/ld.so.preload"):  # the image's
        data = data.replace(file, _moved("none", file))
    (folder / "ld.so").write_bytes(data)
    (folder / "ld.so").chmod(0o755)
    with copy.open("r+b") as out:
        out.seek(offset)
        out.write(own.ljust(size, b"\0"))


def _moved(name: str, path: bytes) -> bytes:
    """A path of ours in place of one of the system's, as long as that was."""
    return f"{AT}/{name}".encode().ljust(len(path), b"/")


def _loader_of(program: Path) -> tuple[int, int, str] | None:
    """Where the path of its loader is in a program of 64 bits, how much room it has, and the path; None without one."""
    with program.open("rb") as file:
        head = file.read(64)
        if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
            return None
        (start,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        file.seek(start)
        headers = file.read(size * count)
        for at in range(0, len(headers), size):
            kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", headers, at)
            if kind == 3:  # PT_INTERP
                file.seek(offset)
                return offset, length, file.read(length).rstrip(b"\0").decode()
    return None
