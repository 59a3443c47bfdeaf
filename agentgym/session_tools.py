"""Tools over a sandbox session: `bash`, `read`, `write` and `edit`, for any environment whose tasks have files."""

from __future__ import annotations

from agentgym.sandbox import FileRefused, Limits, RunStatus, Session
from agentgym.tools import ToolError

_FILE_BYTES = 1 << 20
_OUTPUT_BYTES = 16 * 1024
_LINES = 500


class SessionTools:
    """The state of an episode whose agent works in a session; return it, or a subclass, from `start`.

    timeout_s: wall time of one command, in seconds. The caller keeps the session open for the whole episode.
    """

    def __init__(self, session: Session, *, timeout_s: float = 30.0) -> None:
        self._session = session
        self._limits = Limits(wall_s=timeout_s, cpu_s=max(1, round(timeout_s)), output_bytes=_OUTPUT_BYTES)

    async def bash(self, command: str) -> str:
        """Run a command line in the work folder. What it starts in the background keeps running.

        Args:
            command: for `sh`
        """
        if "\0" in command:
            raise ToolError("a command has no NUL byte")
        ran = await self._session.exec(command, limits=self._limits)
        parts = [ran.stdout, ran.stderr, "[the output was cut]" if ran.truncated else ""]
        if ran.status is RunStatus.TIMEOUT:
            parts.append(f"[ended after {self._limits.wall_s:g} s]")
        elif ran.status not in (RunStatus.OK, RunStatus.ERROR):
            parts.append(f"[ended: {ran.status.value}]")
        elif ran.exit_code != 0:
            parts.append(f"[exit code {ran.exit_code}]")
        return "\n".join(part.rstrip("\n") for part in parts if part)

    async def read(self, path: str, first_line: int = 1, last_line: int = 0) -> str:
        """Read a text file, or some of its lines.

        Args:
            path: of the file
            first_line: counted from 1
            last_line: included; 0 for the end of the file
        """
        lines = (await self._text(path)).split("\n")
        if lines[-1] == "":
            lines.pop()  # the end of the last line
        end = last_line or len(lines)
        if not lines and first_line == 1 and last_line == 0:
            return ""
        if not 1 <= first_line <= min(end, len(lines)):
            raise ToolError(f"{path} has {len(lines)} lines; there are no lines {first_line} to {end}")
        shown = lines[first_line - 1 : min(end, first_line + _LINES - 1)]
        rest = min(end, len(lines)) - (first_line - 1) - len(shown)
        more = [f"[{rest} more lines; continue with first_line={first_line + _LINES}]"] if rest > 0 else []
        return "\n".join([*shown, *more])

    async def write(self, path: str, text: str) -> None:
        """Create or replace a text file, and create the folders above it.

        Args:
            path: of the file
            text: all of its text
        """
        data = text.encode()
        if len(data) > _FILE_BYTES:
            raise ToolError(f"the text has {len(data)} bytes; at most {_FILE_BYTES} are written")
        try:
            await self._session.write(path, data)
        except FileRefused as refused:
            raise ToolError(f"{path}: {refused}") from refused

    async def edit(self, path: str, old: str, new: str) -> None:
        """Replace a text that occurs exactly once in a file.

        Args:
            path: of the file
            old: the text as the file has it, white space included
            new: what takes its place
        """
        if not old or old == new:
            raise ToolError("old is empty; give a text of the file" if not old else "old and new are the same text")
        text = await self._text(path)
        first = text.find(old)
        if first < 0:
            raise ToolError(f"old does not occur in {path}; it must be as the file has it, white space included")
        if text.find(old, first + 1) >= 0:
            raise ToolError(f"old occurs more than once in {path}; give more of the lines around it")
        await self.write(path, text.replace(old, new))

    async def _text(self, path: str) -> str:
        try:
            return (await self._session.read(path, max_bytes=_FILE_BYTES)).decode()
        except FileRefused as refused:
            raise ToolError(f"{path}: {refused}") from refused
        except UnicodeDecodeError as error:
            raise ToolError(f"{path} is not UTF-8 text; use bash to look at it") from error
