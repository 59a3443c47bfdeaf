"""Packs the agent's modules into one argument for `python3 -I -c`, so that the image holds nothing of ours."""

from __future__ import annotations

from importlib import resources

AGENT_PACKAGE = "agentgym_sandboxes.docker.agent"
MAX_ARGUMENT_BYTES = 128 * 1024  # Linux: MAX_ARG_STRLEN

_BOOT = '''\
import sys
from importlib.machinery import ModuleSpec

class Bundle:
    """Imports the modules of this argument."""
    def find_spec(self, name, path=None, target=None):
        if name in SOURCES:
            return ModuleSpec(name, self, is_package=name == "agent")
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec(compile(SOURCES[module.__name__], "<%s>" % module.__name__, "exec"), module.__dict__)

sys.meta_path.insert(0, Bundle())
from agent.main import main
main(sys.argv[1:])
'''


def agent_argument() -> str:
    """The program text. Raises ValueError when it is longer than one argument may be."""
    sources = {}
    for file in sorted(resources.files(AGENT_PACKAGE).iterdir(), key=lambda f: f.name):
        stem, _, suffix = file.name.partition(".")
        if suffix == "py":
            name = "agent" if stem == "__init__" else f"agent.{stem}"
            sources[name] = file.read_text(encoding="utf-8")
    program = f"SOURCES = {sources!r}\n{_BOOT}"
    if len(program.encode()) >= MAX_ARGUMENT_BYTES:
        raise ValueError(f"the agent takes {len(program)} bytes; one argument holds {MAX_ARGUMENT_BYTES}")
    return program
