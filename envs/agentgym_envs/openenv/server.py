"""Where a server is: at a URL, or started here from a folder or an image, and ended with this process."""

from __future__ import annotations

import atexit
import json
import re
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agentgym.errors import InfraError, UserError
from agentgym.programs import kill_all, limited, tagged, waiting_for
from agentgym.types import Json
from agentgym_envs.openenv.wire import is_local

HTTP_S: Final = 10.0
IMAGE_PORT: Final = 8000  # of the servers in OpenEnv's images


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a server says of itself. action: the JSON schema of its actions."""

    url: str
    name: str
    version: str
    description: str
    action: Mapping[str, Any]

    @property
    def named(self) -> str:
        return f"the OpenEnv server {self.name} {self.version} at {self.url}"


class Server:
    """One server. Its process or container starts when it is first asked, again if it died, and ends with `close`."""

    def __init__(
        self,
        *,
        url: str = "",
        folder: str = "",
        python: str = "",
        image: str = "",
        variables: Mapping[str, str] | None = None,
        key: str = "",
        start_s: float = 120.0,
    ) -> None:
        """Raises UserError unless one of url, folder and image is given."""
        if sum(map(bool, (url, folder, image))) != 1:
            raise UserError("openenv: give one of env.options.url, env.options.folder and env.options.image")
        if url and not re.fullmatch(r"(?:http|ws)s?://(?:\[[^]\s]+\]|[^/\s:]+)(?::\d+)?(?:/\S*)?", url):
            raise UserError(f"openenv: url is {url!r}; give http://HOST:PORT")
        self._url = re.sub(r"^ws", "http", url).rstrip("/").removesuffix("/ws")
        self._folder, self._python, self._image = folder, python, image
        self._variables, self._key, self._start_s = dict(variables or {}), key, start_s
        self._lock = threading.Lock()
        self._about: About | None = None
        self._known: About | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._tag = self._container = ""
        self._log: Any = None

    @classmethod
    def shared(cls, **options: Any) -> Server:
        """Where it is started here, one for the same options: a run builds its environment more than once."""
        made = cls(**options)
        return made if made._url else _SHARED.setdefault(repr(sorted(options.items())), made)

    def __getstate__(self) -> dict[str, Any]:
        """Where it is: a copy in another process asks the server that runs, and starts none where it needs none."""
        running = {"_url": self._about.url, "_folder": "", "_image": ""} if self._about else {}
        mine = {"_lock": None, "_process": None, "_container": "", "_log": None}
        return {**self.__dict__, **running, **mine}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def about(self) -> About:
        """Blocks until the server answers. Raises UserError where it cannot be started, InfraError where it is gone."""
        with self._lock:
            died = self._process is not None and self._process.poll() is not None
            if self._about is None or died:
                self._end()
                try:
                    self._about = self._known = self._read(self._url or self._start())
                except BaseException:
                    self._end()
                    raise
            return self._about

    def known(self) -> About:
        """As it answered last: an event loop does not wait for a server that starts again."""
        return self._known or self.about()

    def close(self) -> None:
        with self._lock:
            self._end()

    def _read(self, url: str) -> About:
        metadata, schema = self._get(url, "/metadata"), self._get(url, "/schema")
        action = schema.get("action")
        if not isinstance(action, dict):
            raise UserError(f"{url}/schema has no object `action`, as an OpenEnv server from 0.2 on has")
        name, version, description = (str(metadata.get(key) or "") for key in ("name", "version", "description"))
        return About(url=url, name=name or "server", version=version or "?", description=description, action=action)

    def _get(self, url: str, path: str) -> Mapping[str, Any]:
        request = urllib.request.Request(url + path)
        if self._key:
            request.add_header("Authorization", f"Bearer {self._key}")
        opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if is_local(url) else []))
        try:
            with opener.open(request, timeout=HTTP_S) as answer:
                found: Json = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise UserError(f"{url}{path} answers with status {error.code}: it is not an OpenEnv server") from error
        except OSError as error:
            raise InfraError(f"the OpenEnv server at {url} cannot be reached: {error}") from error
        except ValueError as error:
            raise UserError(f"{url}{path} is not JSON: it is not an OpenEnv server") from error
        if not isinstance(found, dict):
            raise UserError(f"{url}{path} is not a JSON object: it is not an OpenEnv server")
        return found

    def _start(self) -> str:
        """Start the process or the container; returns its URL once it answers."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed with the server
        atexit.register(self.close)
        what = self._folder or self._image
        with waiting_for(f"starting the OpenEnv server of {what}"):
            return self._started(what)

    def _started(self, what: str) -> str:
        url = self._start_folder() if self._folder else self._start_image()
        until = time.monotonic() + self._start_s
        while True:
            try:
                self._get(url, "/health")
                return url
            except (InfraError, UserError) as error:
                if self._process is not None and self._process.poll() is not None:
                    code = self._process.returncode
                    raise UserError(
                        f"the OpenEnv server of {what} ended with code {code}{self._last_words()}"
                    ) from error
                if time.monotonic() > until:
                    limit = f"env.options.start_s = {self._start_s:g} s"
                    raise UserError(
                        f"the OpenEnv server of {what} did not answer within {limit}{self._last_words()}"
                    ) from error
            time.sleep(0.1)

    def _start_folder(self) -> str:
        folder = Path(self._folder).expanduser().resolve()
        manifest = folder / "openenv.yaml"
        if not manifest.is_file():
            raise UserError(f"openenv: {folder} has no openenv.yaml; give the folder of an OpenEnv environment")
        own = folder / ".venv" / "bin" / "python"
        python = self._python or (str(own) if own.exists() else "")
        if not python:
            raise UserError(
                f"openenv: give env.options.python, a Python that has openenv-core and what {folder.name} needs; "
                "they can't be installed beside agentgym"
            )
        named = re.search(r"^app:\s*['\"]?([\w.:]+)", manifest.read_text(encoding="utf-8"), re.MULTILINE)
        listening = socket.create_server(("127.0.0.1", 0))
        command = [python, "-m", "uvicorn", named[1] if named else "server.app:app", "--fd", str(listening.fileno())]
        self._tag, environ = tagged({"PYTHONPATH": str(folder), **self._variables})
        with listening:
            self._process = subprocess.Popen(
                limited(command, memory_mib=0), cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=self._log,
                stderr=self._log, start_new_session=True, pass_fds=[listening.fileno()],
            )  # fmt: skip
            return f"http://127.0.0.1:{listening.getsockname()[1]}"

    def _start_image(self) -> str:
        variables = [word for name, value in self._variables.items() for word in ("-e", f"{name}={value}")]
        run = ["run", "-d", "--rm", "--label", "agentgym=openenv", "-p", f"127.0.0.1::{IMAGE_PORT}", *variables]
        self._container = self._docker(*run, self._image).strip()
        return f"http://{self._docker('port', self._container, f'{IMAGE_PORT}/tcp').split()[0]}"

    def _docker(self, *words: str) -> str:
        try:
            done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=600)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UserError(f"openenv: the image {self._image} needs the program `docker`: {error}") from error
        if done.returncode:
            raise UserError(f"openenv: docker {words[0]} {self._image}: {done.stderr.strip()[-500:]}")
        return done.stdout

    def _last_words(self) -> str:
        if self._container:
            done = subprocess.run(["docker", "logs", "--tail", "5", self._container], capture_output=True, text=True)
            said = done.stdout + done.stderr
        else:
            self._log.seek(0)
            said = self._log.read()[-2000:].decode(errors="replace")
        lines = said.strip().splitlines()
        return f". It said: {lines[-1][:500]}" if lines else ""

    def _end(self) -> None:
        self._about = None
        if self._process is not None:
            kill_all(self._process.pid if self._process.poll() is None else None, self._tag)
            self._process.wait()
            self._process = None
        if self._container:
            subprocess.run(["docker", "rm", "-f", self._container], capture_output=True)
            self._container = ""
        if self._log is not None:
            self._log.close()
            self._log = None
            atexit.unregister(self.close)


_SHARED: Final[dict[str, Server]] = {}
