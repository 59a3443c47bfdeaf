"""Makes an installable package from a template: files with their names filled in."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from agentgym.components import ComponentKind
from agentgym.errors import DISTRIBUTION, UserError
from agentgym.stability import API, VERSION

_CHECK_ALL = "agentgym plugins --check"
_SERVER = "server/app.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One kind of package. kind: of the component that it has; empty for other things.

    modules: of the package, beside `__init__`. plugin: the file with its hook, where several kinds have the same.
    folder: of its files among the templates, where another template has the same. files: more, beside the package.
    commands: what to try, of which the first one is a step of its CI.
    extras: of agentgym, which it needs.
    """

    about: str
    kind: ComponentKind | None = None
    modules: tuple[str, ...] = ("environment",)
    commands: tuple[str, ...] = ("agentgym envs check {{environment}}", "agentgym train --env {{environment}}")
    plugin: str = ""
    extras: str = ""
    folder: str = ""
    files: tuple[str, ...] = ()


TEMPLATES: Mapping[str, Template] = {
    "env": Template(about="An environment", plugin="shared/environment.py"),
    "reward": Template(about="A reward, and an environment to try it in", modules=("environment", "rewards")),
    "sandbox": Template(about="A sandbox, and an environment whose agent uses it", modules=("environment", "sandbox")),
    "tools": Template(about="An environment with tools", plugin="shared/environment.py", extras="[tools]"),
    "openenv": Template(
        about="An environment that OpenEnv's clients play, in a container",
        plugin="shared/environment.py",
        commands=("agentgym envs check {{environment}}", "agentgym envs serve {{environment}}"),
        extras="[serve,openenv]",
        folder="env",
        files=("openenv.yaml", "Dockerfile", _SERVER),
    ),
    "sink": Template(
        about="A metric sink",
        modules=("sink",),
        commands=(_CHECK_ALL, "agentgym train --env math --logging.sinks '[{{name}}]'"),
    ),
    "advantage": Template(
        about="An advantage",
        kind="advantages",
        modules=("advantage",),
        commands=(_CHECK_ALL, "agentgym train --env math --advantage.name {{name}}"),
    ),
    "loss": Template(
        about="A loss",
        kind="losses",
        modules=("loss",),
        commands=(_CHECK_ALL, "agentgym train --env math --loss.name {{name}}"),
        extras="[train]",
    ),
    "tool_format": Template(
        about="A format of tool calls",
        kind="tool_formats",
        modules=("tool_format",),
        commands=(_CHECK_ALL, "agentgym tools prove builtin:tiny --format {{name}}"),
    ),
    "agent": Template(
        about="An agent that is a program",
        kind="agents",
        modules=("agent", "program"),
        commands=("agentgym agents check {{name}}", "agentgym eval builtin:tiny --env math --agent.name {{name}}"),
        extras="[train,serve]",
    ),
    "command": Template(about="A subcommand of agentgym", modules=("command",), commands=("agentgym {{name}} --help",)),
}
_TAKEN = {
    DISTRIBUTION,
    "agentgym",
    "agentgym_envs",
    "agentgym_plugins",
    "agentgym_sandboxes",
    "server",
    "test",
    "tests",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagePlan:
    """What is made. name: of the package, its plugin and what it provides. environment: the name for `--env`, if any.

    source: the URL from which pip installs agentgym; empty: its name there, in this version or later.
    """

    name: str
    template: str
    folder: Path
    source: str = ""

    @property
    def environment(self) -> str:
        if "environment" not in TEMPLATES[self.template].modules:
            return ""
        return f"{self.name}_trial" if self.template == "reward" else self.name

    @property
    def commands(self) -> list[str]:
        """What to try once the package is installed; the first one is a step of its CI."""
        return [
            _filled_in(one, {"name": self.name, "environment": self.environment})
            for one in TEMPLATES[self.template].commands
        ]

    @property
    def class_name(self) -> str:
        return "".join(part.capitalize() for part in self.name.split("_"))

    def contents(self) -> dict[str, str]:
        """The files by their paths in the folder."""
        name, template, about = self.name, self.template, TEMPLATES[self.template]
        folder = about.folder or template
        plugin = about.plugin or ("shared/component.py" if about.kind else f"{template}/__init__.py")
        sources = {
            "pyproject.toml": "shared/pyproject.toml",
            ".gitignore": "shared/gitignore",
            ".github/workflows/check.yml": "shared/check.yml",
            f"{name}/__init__.py": plugin,
            f"{name}/py.typed": "shared/py.typed",
            **{f"{name}/{module}.py": f"{folder}/{module}.py" for module in about.modules},
            f"tests/test_{name}.py": f"{folder}/test.py",
            **{path: f"{template}/{path}" for path in about.files},
        }
        group, target = ('"agentgym.commands"', f"{name}.command") if template == "command" else ("agentgym", name)
        is_server = _SERVER in about.files
        needed = f"{DISTRIBUTION}{about.extras}" + (f" @ {self.source}" if self.source else f">={API}")
        values = {
            "name": name,
            "environment": self.environment,
            "Class": self.class_name,
            "distribution": name.replace("_", "-"),
            "description": about.about,
            "api": API,
            "template": template,
            "hook": about.kind or "",
            "group": group,
            "target": target,
            "commands": "\n".join(self.commands),
            "check": self.commands[0],
            "source": self.source,
            "needed": f"{DISTRIBUTION}{about.extras}",
            "pip_name": DISTRIBUTION,
            "dependencies": _quoted(needed),
            "scripts": '\n[project.scripts]\nserver = "server.app:main"\n' if is_server else "",
            "packages": _quoted(name, *(["server"] if is_server else [])),
        }
        made = {path: _filled(source, values) for path, source in sources.items()}
        listed = [f"- `{path}`: {_first_line(text)}" for path, text in made.items() if path.endswith(".py")]
        return made | {"README.md": _filled("shared/README.md", values | {"files": "\n".join(listed)})}

    def write(self) -> list[Path]:
        """Write the files; returns their paths.

        Raises UserError where the folder holds anything, and for a name by which the files call something else.
        """
        own = self.name if self.template == "reward" else self.class_name
        if own in _names_of(self.template):
            raise UserError(f"the package would call two things {own!r}; give another name, such as my_{self.name}")
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise UserError(f"{str(self.folder)!r} exists, and nothing is overwritten; give another --folder")
        contents = self.contents()
        written = []
        for path, text in contents.items():
            target = self.folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            written.append(target)
        return written


def package_name(given: str) -> str:
    """The name as Python takes it. Raises UserError for one that no package can have."""
    name = given.replace("-", "_")
    shape = "a name has small letters, digits and _, and begins with a letter, as in word_game"
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name.endswith("_") or "__" in name:
        close = re.sub(r"[^a-z0-9]+", "_", given.lower()).strip("_").lstrip("0123456789_")
        raise UserError(f"{given!r} can't name a package: {shape}." + (f" Did you mean {close!r}?" if close else ""))
    if keyword.iskeyword(name) or name in sys.stdlib_module_names or name in _TAKEN:
        raise UserError(f"{name!r} is a word or a module of Python or of agentgym; give another, such as my_{name}")
    if _is_installed(name):
        raise UserError(
            f"a package {name!r} is installed here, which yours would replace; give another name, such as my_{name}"
        )
    return name


def _is_installed(name: str) -> bool:
    """Whether Python imports something by this name, or pip has installed something under it."""
    spec = find_spec(name)
    return (spec is not None and spec.origin is not None) or any(distributions(name=name))


def source_address(given: str) -> str:
    """What follows the @ of a dependency: a URL as it is, a file or folder of this machine as its URL.

    Raises UserError for anything else, such as a name, which is what a package depends on without a source.
    """
    if re.fullmatch(r"[a-z][a-z+]*://[\w.~:/?#@!$&()*+,;=%-]+", given, re.ASCII):
        return given
    if Path(given).exists() and ("/" in given or given.endswith(".whl")):
        return Path(given).resolve().as_uri()
    raise UserError(
        f"--source {given!r} is not a place from which pip can install agentgym; give a URL, as git+https://HOST/OWNER/"
        f"agentgym@TAG or https://HOST/{DISTRIBUTION}-{VERSION}-py3-none-any.whl, or the path "
        "of a wheel or a checkout"
    )


def _names_of(template: str) -> set[str]:
    """What a template's modules import and define, beside what is named after the package, and what Python has."""
    names = set(dir(builtins)) if template == "reward" else set()
    for path, text in PackagePlan(name="x", template=template, folder=Path()).contents().items():
        for node in ast.parse(text).body if path.endswith(".py") else ():
            if isinstance(node, ast.Import | ast.ImportFrom):
                names |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.ClassDef | ast.FunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.Assign):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names - {"x", "X"}


def _quoted(*words: str) -> str:
    return ", ".join(f'"{word}"' for word in words)


def _first_line(code: str) -> str:
    return (ast.get_docstring(ast.parse(code)) or "").partition("\n")[0]


def _filled(source: str, values: Mapping[str, str]) -> str:
    file = files("agentgym.cli") / "templates" / f"{source}.tmpl"
    return _filled_in(file.read_text(encoding="utf-8"), values)


def _filled_in(text: str, values: Mapping[str, str]) -> str:
    for key, value in values.items():
        text = text.replace("{{" + key + "}}", value)
    return text
