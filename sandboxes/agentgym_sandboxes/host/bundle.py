"""Packs the agent's modules into one argument for `python3 -s -c`, so that the image holds nothing of ours.

Not `-I`, which would ignore PYTHONHASHSEED: the same code should answer the same in every container.
"""

from __future__ import annotations

import binascii
import zlib
from functools import cache
from importlib import resources

AGENT_PACKAGE = "agentgym_sandboxes.agent"
MAX_ARGUMENT_BYTES = 128 * 1024  # Linux: MAX_ARG_STRLEN

_BOOT = '''\
import sys
sys.path[:] = filter(None, sys.path)  # nothing is imported from wherever a process happens to be
from binascii import a2b_base64
from importlib.machinery import ModuleSpec
from zlib import decompress

class Bundle:
    """Imports the modules of this argument; get_source gives tracebacks their lines."""
    def find_spec(self, name, path=None, target=None):
        if name in SOURCES:
            return ModuleSpec(name, self, is_package=name == "agent")
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        file = module.__name__.replace(".", "/") + ".py"
        exec(compile(SOURCES[module.__name__], file, "exec"), module.__dict__)
    def get_source(self, name):
        return SOURCES[name]

SOURCES = eval(decompress(a2b_base64(PACKED)))
sys.meta_path.insert(0, Bundle())
from agent.@ENTRY import main
main(sys.argv[1:])
'''


@cache
def agent_argument(entry: str = "main") -> str:
    """The program text. entry: the module whose `main` it calls.

    Raises ValueError when it is longer than one argument may be.
    """
    sources = {}
    for file in sorted(resources.files(AGENT_PACKAGE).iterdir(), key=lambda f: f.name):
        stem, _, suffix = file.name.partition(".")
        if suffix == "py":
            name = "agent" if stem == "__init__" else f"agent.{stem}"
            sources[name] = file.read_text(encoding="utf-8")
    packed = binascii.b2a_base64(zlib.compress(repr(sources).encode(), 9), newline=False)
    program = f"PACKED = {packed!r}\n{_BOOT.replace('@ENTRY', entry)}"
    if len(program) >= MAX_ARGUMENT_BYTES:
        raise ValueError(f"the agent takes {len(program)} bytes; one argument holds {MAX_ARGUMENT_BYTES}")
    return program
