"""Our own Python on a read-only volume, from which the agent runs in containers of any Linux image.

It is copied from our sandbox image by a container of that, once for each image and engine: the interpreter, the
standard library, each shared library that they load, and the loader. The loader is the image's own, glibc's or
musl's, and is started by its path, so nothing of the other image plays a part but its architecture.
"""

from __future__ import annotations

import functools
import hashlib
import uuid
from typing import TYPE_CHECKING

from agentgym.errors import InfraError
from agentgym.types import Json
from agentgym_sandboxes.docker.engine import Engine
from agentgym_sandboxes.docker.profile import LABEL, OWNER_LABEL, VOLUME_LABEL
from agentgym_sandboxes.docker.volumes import PREFIX, mount

if TYPE_CHECKING:
    from docker import APIClient

TREE = "/.agentgym"
PYTHON = (f"{TREE}/ld.so", "--library-path", f"{TREE}/lib", f"{TREE}/bin/python3")
TREE_TIMEOUT_S = 300.0

_FILL = """
import fcntl, importlib, os, shutil, sys, sysconfig
TREE = "@TREE"
fcntl.flock(os.open(TREE, os.O_RDONLY), fcntl.LOCK_EX)  # of others that fill it
if os.path.exists(TREE + "/ld.so"):  # it comes last
    sys.exit()
for name in os.listdir(TREE):
    shutil.rmtree(os.path.join(TREE, name))
stdlib = sysconfig.get_path("stdlib")
for name in os.listdir(os.path.join(stdlib, "lib-dynload")):
    try:
        importlib.import_module(name.partition(".")[0])
    except Exception:
        pass  # its library is not in the image, as Tk's
with open("/proc/self/maps") as file:
    mapped = {line.split(None, 5)[5].strip() for line in file if ".so" in line}
version = "python%d.%d" % sys.version_info[:2]
dropped = ("test", "idlelib", "lib2to3", "ensurepip", "tkinter", "turtledemo", "site-packages", "dist-packages",
           "sitecustomize.py", "config-*")
ignore = shutil.ignore_patterns(*dropped)
shutil.copytree(stdlib, TREE + "/lib/" + version, ignore=ignore, ignore_dangling_symlinks=True)
os.mkdir(TREE + "/bin")
shutil.copy2(os.path.realpath(sys.executable), TREE + "/bin/python3")
loader = None
for path in mapped:
    folder, base = os.path.split(path)
    if base.startswith(("ld-", "ld.")):
        loader = path
    if folder.startswith(stdlib):
        continue
    shutil.copy2(path, TREE + "/lib/" + base)
    for name in os.listdir(folder):  # it is loaded by another name as a rule
        if name != base and os.path.realpath(os.path.join(folder, name)) == os.path.realpath(path):
            os.symlink(base, TREE + "/lib/" + name)
with open(loader, "rb") as file, open(TREE + "/ld.so.new", "wb") as ours:
    ours.write(file.read().replace(b"/etc/ld.so.preload", b"/.agentgym/preload"))  # what an image loads is not ours
os.chmod(TREE + "/ld.so.new", 0o755)
os.sync()
os.rename(TREE + "/ld.so.new", TREE + "/ld.so")
""".replace("@TREE", TREE)


async def provide_tree(engine: Engine, image: str, owner: str) -> str:
    """The name of the volume on this engine, made and filled if need be. image: the id of one that has our Python.

    Raises InfraError when it could not be filled.
    """
    volume = f"{PREFIX}{hashlib.sha256(f'{image} {_FILL}'.encode()).hexdigest()[:16]}"
    name = f"agentgym-fill-{uuid.uuid4().hex[:12]}"
    fill = functools.partial(_fill, name=name, image=image, volume=volume, owner=owner)
    engine.names.add(name)
    try:
        said = await engine.call_long("fill a volume with Python", fill, TREE_TIMEOUT_S)
    finally:
        engine.names.discard(name)
    if said:
        raise InfraError(f"the Docker engine at {engine.url} did not fill the volume {volume} from {image}: {said}")
    return volume


def _fill(client: APIClient, *, name: str, image: str, volume: str, owner: str) -> str:
    """What went wrong, or an empty text."""
    client.create_volume(volume, labels={VOLUME_LABEL: "Python for sessions"})  # fine when it is there
    host: dict[str, Json] = {
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges:true"],
        "Mounts": [mount(volume, TREE, read_only=False)],
        "LogConfig": {"Type": "json-file"},
    }
    settings: dict[str, Json] = {
        "Image": image,
        "Entrypoint": ["python3", "-I", "-c", _FILL],
        "User": "0:0",
        "Labels": {LABEL: "1", OWNER_LABEL: owner},
        "NetworkDisabled": True,
        "HostConfig": host,
    }
    container = client.create_container_from_config(settings, name)["Id"]
    try:
        client.start(container)
        status = client.wait(container)["StatusCode"]
        return "" if status == 0 else client.logs(container, tail=20).decode(errors="replace") or f"exit code {status}"
    finally:
        client.remove_container(container, force=True)
