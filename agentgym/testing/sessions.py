"""The suite of a sandbox's sessions."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

from agentgym.sandbox import FileRefused, Limits, RunStatus, Session
from agentgym.testing.sandboxes import SandboxSuite
from agentgym.testing.suite import expect, promise, skip

SESSION = "agentgym.sandbox:Session"


class SessionConformance(SandboxSuite):
    """What the sessions of a backend promise; skipped where `probe` does not report `sessions`."""

    @promise("agentgym.sandbox:Sandbox.session", "A sandbox leased for an episode")
    async def test_a_session_begins_without_what_another_left(self) -> None:
        async with self.session() as session:
            await session.run("kept = 5")
            await session.write("kept.txt", b"5")
        async with self.session() as session:
            await self._is_new(session)

    @promise(f"{SESSION}.run", "Run code in the session's Python, where names last")
    async def test_names_last_from_run_to_run(self) -> None:
        async with self.session() as session:
            await session.run("x = 5")
            expect("what is printed", (await session.run("print(x)")).stdout, "5\n")

    @promise(f"{SESSION}.run", "as at a prompt, the value of a last expression is printed")
    async def test_the_value_of_a_last_expression_is_printed(self) -> None:
        async with self.session() as session:
            expect("what is printed", (await session.run("x = 'a'\nx * 2")).stdout, "'aa'\n")

    @promise(f"{SESSION}.run", "At the wall limit it is interrupted, which keeps the names")
    async def test_an_endless_run_is_interrupted_and_keeps_the_names(self) -> None:
        async with self.session() as session:
            await session.run("x = 5")
            endless = await session.run("while True: pass", limits=Limits(wall_s=0.5))
            expect("the status of an endless run", endless.status, RunStatus.TIMEOUT)
            after = await session.run("print(x)")
            assert endless.state_lost or after.stdout == "5\n", f"x is lost, and `state_lost` is False: {after}"

    @promise(f"{SESSION}.exec", "Run a command: a string goes to `sh -c`.")
    async def test_a_command_is_a_line_for_the_shell_or_a_list_of_words(self) -> None:
        async with self.session() as session:
            await session.write("folder/file.txt", b"")
            expect("of a line", (await session.exec("echo $((1 + 2)); exit 3")).exit_code, 3)
            expect("of a list", (await session.exec(["echo", "$((1 + 2))"])).stdout, "$((1 + 2))\n")
            expect("in a folder", (await session.exec("ls", folder="folder")).stdout, "file.txt\n")
            expect("of its input", (await session.exec("cat", stdin="a line")).stdout, "a line")

    @promise(f"{SESSION}.read", "A regular file. Raises FileRefused for all else.")
    async def test_only_regular_files_of_the_work_folder_are_read(self) -> None:
        async with self.session() as session:
            await session.write("folder/file", b"\x00data")
            expect("what is read", await session.read("folder/file"), b"\x00data")
            for path in ("none", "folder", "../file", "/etc/passwd", "folder/../../file"):
                await _refused(f"read of {path!r}", session.read(path))
            await _refused("read of more than max_bytes", session.read("folder/file", max_bytes=2))

    @promise(f"{SESSION}.write", "Make or replace a regular file, and the folders above it. Raises FileRefused.")
    async def test_files_are_made_and_replaced_in_the_work_folder(self) -> None:
        async with self.session() as session:
            for data in (b"first", b"2"):
                await session.write("a/b/c", data)
                expect("what is read", await session.read("a/b/c"), data)
            for path in ("../file", "/tmp/file", "a/b"):
                await _refused(f"write of {path!r}", session.write(path, b"data"))

    @promise(f"{SESSION}.files", "All below a folder, sorted by path; links and devices are left out.")
    async def test_files_are_listed_sorted_and_without_links(self) -> None:
        async with self.session() as session:
            for path in ("b", "a/c", "a/b"):
                await session.write(path, b"12")
            await session.exec("ln -s /etc/passwd a/link")
            found = [(one.path, one.size, one.is_folder) for one in await session.files()]
            expect("the files", found, [("a", 0, True), ("a/b", 2, False), ("a/c", 2, False), ("b", 2, False)])
            expect("those of a folder", [one.path for one in await session.files("a")], ["a/b", "a/c"])

    @promise(f"{SESSION}.reset", "no process, no name, no file is left")
    async def test_reset_leaves_nothing(self) -> None:
        async with self.session() as session:
            await session.run("kept = 5")
            await session.write("kept.txt", b"5")
            await session.reset()
            await self._is_new(session)

    @promise(
        f"{SESSION}.restore",
        "Put a snapshot in place of all files; names and processes go. Raises FileRefused for a bad archive.",
    )
    async def test_a_snapshot_is_put_in_place_of_all_files(self) -> None:
        async with self.session() as session:
            await session.write("a/kept", b"5")
            saved = await session.snapshot()
            with tarfile.open(fileobj=io.BytesIO(saved)) as archive:
                names = [name.removeprefix("./") for name in archive.getnames()]
            assert "a/kept" in names, f"the snapshot is a tar archive of {names}"
            await session.write("later", b"6")
            await session.restore(saved)
            expect("the files", [one.path for one in await session.files()], ["a", "a/kept"])
            await _refused("restore of no archive", session.restore(b"no archive"))

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """A new one; skips where there are none."""
        if not (await self.able()).sessions:
            skip("it has no sessions")
        async with (await self.backend()).session() as session:
            yield session

    async def _is_new(self, session: Session) -> None:
        expect("the files of a new session", await session.files(), ())
        status = (await session.run("print(kept)")).status
        expect("the status where a name is not defined", status, RunStatus.ERROR)


async def _refused(what: str, call: Awaitable[object]) -> None:
    try:
        found = await call
    except FileRefused:
        return
    raise AssertionError(f"{what} is not refused: {found!r:.100}")
