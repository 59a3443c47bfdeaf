"""The modules of the page as one script, for a page that is one file: each in a function of its own, in order.

Only what our modules use of JavaScript's import and export is known; anything else is refused, so that a page that
would not work is never written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agentgym.tables.roots import inside

_IMPORT = re.compile(
    r"""^[ \t]*import\s*(?:(?P<what>[^"';]+?)\s*from\s*)?["'](?P<path>[^"']+)["'][ \t]*;?""", re.MULTILINE
)
_WHAT = re.compile(r"(?:(?P<default>[\w$]+)\s*,?\s*)?(?:\{(?P<names>[^}]*)\}|\*\s*as\s+(?P<all>[\w$]+))?")
_DECLARED = re.compile(
    r"^[ \t]*export\s+(?P<kind>(?:async\s+)?function\s*\*?|class|const)\s+(?P<name>[A-Za-z_$][\w$]*)", re.MULTILINE
)
_LISTED = re.compile(r"\bexport\s*\{(?P<names>[^}]*)\}(?!\s*from)[ \t]*;?")
_DEFAULT = re.compile(r"^[ \t]*export\s+default\s+", re.MULTILINE)
_REST = re.compile(r"^[ \t]*(?:import|export)\b(?![ \t]*[:=,)])", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*/\*.*?\*/", re.MULTILINE | re.DOTALL)
_FORBIDDEN = ("import.meta", "import(")


class NotBundled(ValueError):
    """A module that has something that is not known here."""


@dataclass(slots=True)
class Bundle:
    """folder: of the page; no module outside of it is read."""

    folder: Path
    _texts: dict[str, str] = field(default_factory=dict)  # by path, in the order in which they run
    _open: list[str] = field(default_factory=list)

    def of(self, entry: str) -> str:
        """The script that does what the module at `entry`, a path in the folder, does. Raises NotBundled."""
        self._add(entry)
        lines = ["const __modules = Object.create(null);"]
        for path, text in self._texts.items():
            lines.append(f"// {path}\n__modules[{path!r}] = (() => {{\n{text}\n}})();")
        return "\n".join(lines) + "\n"

    def _add(self, path: str) -> None:
        if path in self._texts:
            return
        if path in self._open:
            raise NotBundled(f"{' -> '.join([*self._open, path])}: modules import each other in a circle")
        self._open.append(path)
        file = self._file(path)
        text = file.read_text(encoding="utf-8")
        made = self._changed(path, text)
        self._open.pop()
        self._texts[path] = made

    def _file(self, path: str) -> Path:
        folder = self.folder
        for name in path.split("/"):
            found = inside(folder, name)
            if found is None:
                raise NotBundled(f"{path}: not a file of the page")
            folder = found
        if not folder.is_file():
            raise NotBundled(f"{path}: no such file")
        return folder

    def _changed(self, path: str, text: str) -> str:
        for words in _FORBIDDEN:
            if words in text:
                raise NotBundled(f"{path}: {words} is not known here")
        exported: dict[str, str] = {}
        text = _sub(_IMPORT, lambda match: self._imported(path, match), text)

        def declared(match: re.Match[str]) -> str:
            exported[match["name"]] = match["name"]
            return f"{match['kind']} {match['name']}"

        def listed(match: re.Match[str]) -> str:
            for one in filter(None, (part.strip() for part in match["names"].split(","))):
                inner, _, outer = one.partition(" as ")
                exported[(outer or inner).strip()] = inner.strip()
            return ""

        def default(match: re.Match[str]) -> str:
            exported["default"] = "__default"
            return "const __default = "

        for pattern, change in ((_DECLARED, declared), (_LISTED, listed), (_DEFAULT, default)):
            text = _sub(pattern, change, text)
        for rest in _REST.finditer(text):
            if not _in_comment(text, rest.start()):
                raise NotBundled(f"{path}: {text[rest.start() : rest.start() + 60]!r} is not known here")
        names = ", ".join(f"{outer!r}: {inner}" for outer, inner in exported.items())
        return f'"use strict";\n{text}\nreturn {{{names}}};'

    def _imported(self, path: str, match: re.Match[str]) -> str:
        if not match["path"].startswith(("./", "../")):
            raise NotBundled(f"{path}: {match['path']!r} is not a relative path")
        target = _joined(path, match["path"])
        self._add(target)
        source, what = f"__modules[{target!r}]", (match["what"] or "").strip()
        if not what:
            return ""
        found = re.fullmatch(
            r"(?:(?P<default>[\w$]+)\s*,?\s*)?(?:\{(?P<names>[^}]*)\}|\*\s*as\s+(?P<all>[\w$]+))?", what
        )
        if found is None:
            raise NotBundled(f"{path}: import {what!r} is not known here")
        parts = [f"const {found['default']} = {source}.default;"] if found["default"] else []
        if found["all"]:
            parts.append(f"const {found['all']} = {source};")
        if found["names"]:
            names = [re.sub(r"\s+as\s+", ": ", one.strip()) for one in found["names"].split(",") if one.strip()]
            parts.append(f"const {{{', '.join(names)}}} = {source};")
        return " ".join(parts)


def _sub(pattern: re.Pattern[str], change: Callable[[re.Match[str]], str], text: str) -> str:
    return pattern.sub(lambda match: match[0] if _in_comment(text, match.start()) else change(match), text)


def _in_comment(text: str, at: int) -> bool:
    """Whether a comment of several lines, one that begins a line, goes on at a place."""
    return any(span.start() < at < span.end() for span in _COMMENT.finditer(text))


def _joined(path: str, target: str) -> str:
    parts = path.split("/")[:-1]
    for name in target.split("/"):
        if name == "..":
            if not parts:
                raise NotBundled(f"{path}: {target!r} leads out of the page")
            parts.pop()
        elif name != ".":
            parts.append(name)
    return "/".join(parts)
