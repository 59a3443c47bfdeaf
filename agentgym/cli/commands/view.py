"""`agentgym view`: one local page about runs, while they go on and afterwards."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import webbrowser
from pathlib import Path

from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.commands.stopping import serve_until_stopped
from agentgym.errors import UserError, pip_install
from agentgym.import_path import is_import_path
from agentgym.runs.files import writing_output

DESCRIPTION = """
Open a page about runs in the browser: whether they learn, curves with intervals, staleness, episodes token by token,
two checkpoints compared, environments to play by hand. It reads the folders of the runs, also copied ones and those
of runs that go on, and writes nothing but what you ask a run to do. Only this machine can open it, unless --host says
otherwise; then the address has a random token. Ctrl-C or SIGTERM ends it, with exit code 0.
"""
EXAMPLES = """
agentgym view
agentgym view runs/math-1 evals --port 8000
agentgym view runs --no-browser
agentgym view runs/math-1 --export report.html
"""
TAKES_OVERRIDES = False


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "runs", nargs="*", metavar="RUNS", help="runs, or folders that hold runs (default: runs and evals)"
    )
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, metavar="N", help="default: 8710, or the next that is free; 0 is any")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="PATH",
        help="an environment of yours to play by hand, as my_env.py:GuessNumber; may be repeated",
    )
    parser.add_argument("--export", metavar="FILE", help="write one HTML file with the page and its data, and end")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    for package in ("starlette", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"this needs {package}, which is not installed: {pip_install('serve')}")
    from agentgym.tables.roots import Roots, cache_folder
    from agentgym.view.app import View
    from agentgym.view.export import Export
    from agentgym.view.plays import Plays
    from agentgym.view.server import listen, serve

    for name in arguments.env:
        if not is_import_path(name):
            raise UserError(
                f"--env {name}: installed environments are shown anyway; give an import path, my_env.py:Name"
            )
    plays = None if arguments.export else Plays(shell.plugins, arguments.env)
    view = View(Roots.of(arguments.runs), cache_folder(), plays)
    count = sum(1 for _ in view.roots.locations())
    shell.warn(f"{count} run{'s' if count != 1 else ''} in {', '.join(str(r.path / r.only) for r in view.roots.roots)}")

    if arguments.export:
        export = Export(view)
        with writing_output(Path(arguments.export)):
            size = export.write(Path(arguments.export))
        shell.say(f"{arguments.export}: {size / 2**20:.1f} MiB, {len(export.answers)} answers")
        for line in export.left_out:
            shell.say(f"left out: {line}")
        return 0

    shell.goes_on()

    def started(address: str) -> None:
        shell.say(address)
        if not arguments.no_browser:
            with contextlib.suppress(webbrowser.Error):
                webbrowser.open(address)

    with contextlib.closing(listen(arguments.host, arguments.port)) as listening:
        serve_until_stopped(serve(view, arguments.host, listening, started))
    return 0
