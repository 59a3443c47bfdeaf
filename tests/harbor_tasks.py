"""Ten small task folders and the images that they name, for the tests of the environment harbor."""

from __future__ import annotations

import subprocess
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

PYTEST = ("py.py", "pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments")
PASSWD = "root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/app:/bin/sh\n"
HEAD = "#!/bin/sh\nmkdir -p /logs/verifier\n"
SAYS = 'if {0}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'  # fmt: skip
PYTEST_RUN = "cd /app && python3 -m pytest -q -p no:cacheprovider /tests/test_sums.py"

SERVER = dedent("""\
    import json, os, sys, time
    print("the shop opens", file=sys.stderr)
    TOOL = {"name": "price", "description": "What a thing costs.", "inputSchema": {
        "type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}}
    for line in sys.stdin:
        asked = json.loads(line)
        said = {}
        if asked["method"] == "initialize":
            said = {"result": {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}},
                               "serverInfo": {"name": "shop", "version": "1"}}}
        elif asked["method"] == "tools/list":
            said = {"result": {"tools": [TOOL, {**TOOL, "name": "bash"}]}}
        elif asked["method"] == "tools/call":
            item = asked["params"]["arguments"]["item"]
            if item == "patience":
                time.sleep(1000)
            text = "x" * (9 << 20) if item == "flood" else f"{sum(map(ord, item))} cents"
            said = {"result": {"content": [{"type": "text", "text": text}]}}
        elif "id" in asked:
            said = {"error": {"code": -32601, "message": "no such method"}}
        if said:
            print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
""")
ASKED = '{"id": 1, "method": "tools/call", "params": {"name": "price", "arguments": {"item": "lamp"}}}'

TASKS: Mapping[str, Mapping[str, str]] = {
    "hello-file": {
        "task.toml": '[environment]\ndocker_image = "BUSYBOX"\nworkdir = "/app"\nmemory_mb = 128\n',
        "instruction.md": "Write 42 into the file /app/answer.",
        "solution/solve.sh": "echo 42 > /app/answer\n",
        "tests/test.sh": HEAD + SAYS.format('[ "$(cat /app/answer)" = "$(cat /tests/expected)" ]'),
        "tests/expected": "42\n",
    },
    "fix-sum": {
        "task.toml": '[environment]\ndocker_image = "PYTHON"\nworkdir = "/app"\n',
        "instruction.md": "The function add of /app/sums.py is wrong. Fix it.",
        "solution/solve.sh": "printf 'def add(a, b):\\n    return a + b\\n' > /app/sums.py\n",
        "tests/test.sh": HEAD + f"{PYTEST_RUN}\n" + SAYS.format("[ $? = 0 ]"),
        "tests/test_sums.py": "from sums import add\n\ndef test_add():\n    assert add(2, 3) == 5\n",
        "environment/sums.py": "def add(a, b):\n    return a - b\n",
    },
    "partial": {
        "task.toml": '[environment]\ndocker_image = "PYTHON"\nworkdir = "/app"\n',
        "instruction.md": "Write 1 into /app/one and 2 into /app/two.",
        "solution/solve.sh": "#!/bin/bash\necho 1 > one; echo 2 > two\n",
        "environment/one": "1\n",
        "tests/test.sh": "#!/usr/bin/python3\n" + dedent("""\
            import json, pathlib
            right = [int(pathlib.Path(f"/app/{name}").read_text().strip() == want)
                     for name, want in (("one", "1"), ("two", "2")) if pathlib.Path(f"/app/{name}").exists()]
            pathlib.Path("/logs/verifier/reward.json").write_text(json.dumps({"reward": sum(right) / 2, "n": 1}))
        """),
    },
    "install-tool": {
        "task.toml": 'artifacts = ["/usr/local/bin/shout"]\n[environment]\ndocker_image = "PYTHON"\nworkdir = "/app"\n',
        "instruction.md": "Install a program `shout` in /usr/local/bin that prints its argument in capitals.",
        "solution/solve.sh": "printf '#!/bin/sh\\necho \"$1\" | tr a-z A-Z\\n' > /usr/local/bin/shout\n"
        "chmod +x /usr/local/bin/shout; sync\n",
        "tests/test.sh": HEAD + SAYS.format('[ "$(shout hello)" = HELLO ]'),
    },
    "service": {
        "task.toml": '[environment]\ndocker_image = "BUSYBOX"\nworkdir = "/app"\n[verifier]\nagentgym_mode = "live"\n',
        "instruction.md": "Serve the folder /app by HTTP on port 8080.",
        "solution/solve.sh": "echo served > /app/index.html; httpd -p 8080 -h /app\n",
        "tests/test.sh": HEAD + SAYS.format('[ "$(wget -Y off -q -O- http://127.0.0.1:8080/index.html)" = served ]'),
    },
    "start-script": {
        "task.toml": '[environment]\ndocker_image = "BUSYBOX"\nworkdir = "/app"\n[agent]\ntimeout_sec = 60\n',
        "instruction.md": "Write /app/run.sh, which prints hello.",
        "solution/solve.sh": "printf '#!/bin/sh\\necho hello\\n' > run.sh; chmod +x run.sh\n",
        "tests/test.sh": HEAD + SAYS.format('[ "$(/app/run.sh)" = hello ]'),
    },
    "other-user": {
        "task.toml": dedent("""\
            [environment]
            docker_image = "BUSYBOX"
            workdir = "/app"
            env = {GREETING = "${NO_SUCH_GREETING:-hi}"}
            healthcheck = {command = "echo x >> /tmp/tries; [ $(wc -l < /tmp/tries) -ge 3 ]", interval_sec = 0}
            [agent]
            user = "app"
            [verifier]
            user = "root"
            env = {WANTED = "1000"}
        """),
        "instruction.md": "Write your user's number and $GREETING into /app/me.",
        "solution/solve.sh": 'echo "$(id -u) $GREETING" > /app/me\n',
        "tests/test.sh": HEAD + SAYS.format('[ "$(cat /app/me) $(id -u)" = "$WANTED hi 0" ]'),
    },
    "served": {
        "task.toml": dedent("""\
            [environment]
            docker_image = "PYTHON"
            workdir = "/app"
            [[environment.mcp_servers]]
            name = "shop"
            transport = "stdio"
            command = "python3"
            args = ["server.py"]
        """),
        "instruction.md": "Write the price of a lamp, which the tool `price` knows, into /app/price.",
        "environment/server.py": SERVER,
        "solution/solve.sh": f"echo '{ASKED}' | python3 server.py | grep -o '[0-9]* cents' > price\n",
        "tests/test.sh": HEAD + SAYS.format('[ "$(cat /app/price)" = "$(cat /tests/expected)" ]'),
        "tests/expected": "426 cents\n",
    },
    "separate": {
        "task.toml": dedent("""\
            artifacts = [{source = "/app/out", exclude = ["*.tmp"]}]
            [environment]
            docker_image = "BUSYBOX"
            workdir = "/app"
            [verifier]
            environment = {docker_image = "JUDGE", network_mode = "no-network"}
            collect = [{command = "echo collected > /app/out/hook"}]
        """),
        "instruction.md": "Write 7 into /app/out/seven.",
        "solution/solve.sh": "mkdir -p out; echo 7 > out/seven; echo t > out/x.tmp\n",
    },
    "two-steps": {
        "task.toml": dedent("""\
            [environment]
            docker_image = "BUSYBOX"
            workdir = "/app"
            [[steps]]
            name = "first"
            min_reward = 0.5
            [[steps]]
            name = "second"
        """),
        "steps/first/instruction.md": "Write 1 into /app/first.",
        "steps/first/solution/solve.sh": "echo 1 > first\n",
        "steps/first/tests/test.sh": HEAD + SAYS.format('[ "$(cat /app/first)" = 1 ]'),
        "steps/second/instruction.md": "Copy what setup.sh left in /app/secret to /app/second.",
        "steps/second/workdir/setup.sh": "#!/bin/sh\necho $$ > /app/secret\n",
        "steps/second/solution/solve.sh": "[ ! -e /tests ] && cp secret second\n",
        "steps/second/tests/test.sh": HEAD + SAYS.format("cmp /app/secret /app/second"),
    },
    "allow-list": {
        "task.toml": dedent("""\
            [environment]
            docker_image = "BUSYBOX"
            workdir = "/app"
            network_mode = "allowlist"
            allowed_hosts = ["example.org"]
            [verifier]
            network_mode = "no-network"
        """),
        "instruction.md": "Write yes into /app/refused if http://example.com is refused; your proxy into /app/proxy.",
        "solution/solve.sh": "wget -q -O- http://example.com/ || echo yes > refused; echo $http_proxy > proxy\n",
        "tests/test.sh": HEAD
        + SAYS.format('[ "$(cat /app/refused)" = yes ] && grep -q http /app/proxy && [ -z "$http_proxy" ]'),
    },
    "limits": {
        "task.toml": dedent("""\
            [environment]
            docker_image = "BUSYBOX"
            workdir = "/app"
            memory_mb = 128
            cpus = 0.5
            [verifier]
            timeout_sec = 20
        """),
        "instruction.md": "Write right into /app/word.",
        "solution/solve.sh": "echo right > word\n",
        "tests/test.sh": HEAD + dedent("""\
            cd /logs/verifier
            case "$(cat /app/word)" in
              right) echo 1 > reward.txt;;
              nan) echo nan > reward.txt;;
              big) head -c 2000000 /dev/zero > reward.txt;;
              none) ;;
              much) echo 7.5 > reward.txt;;
              hang) sleep 1000;;
              *) echo 0 > reward.txt;;
            esac
        """),
    },
}  # fmt: skip
JUDGE = HEAD + SAYS.format(
    '[ "$(cat /app/out/seven)" = 7 ] && [ -e /app/out/hook ] && [ ! -e /app/out/x.tmp ] && [ ! -e /app/other ]'
)


def write_tasks(folder: Path, images: Mapping[str, str]) -> Path:
    """The task folders, with images by their names in capitals; those whose image is not there are left out."""
    for name, files in TASKS.items():
        if "PYTHON" not in images and '"PYTHON"' in files["task.toml"]:
            continue
        for path, text in files.items():
            for image, number in images.items():
                text = text.replace(f'"{image}"', f'"{number}"')
            (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / path).write_text(text)
    return folder


def task_images(busybox: Path, base: str | None, folder: Path, made: list[str]) -> dict[str, str]:
    """Images by name; `made` gets them, too, to be removed.

    BUSYBOX: one static binary and its links. JUDGE: the same with tests of its own.

    base: our sandbox image; then PYTHON is there, too, which is that with pytest.
    """
    contexts = {
        "BUSYBOX": {
            "Dockerfile": "FROM scratch\nCOPY busybox /bin/busybox\nCOPY passwd /etc/passwd\n"
            'RUN ["/bin/busybox", "--install", "-s", "/bin"]\nRUN mkdir -m 777 /app /tmp\n',
            "passwd": PASSWD,
        },
        "JUDGE": {
            "Dockerfile": "FROM BUSYBOX\nCOPY test.sh /tests/test.sh\nRUN chmod 755 /tests/test.sh\n",
            "test.sh": JUDGE,
        },
    }
    if base is not None:
        copied = f"FROM {base}\nCOPY packages /usr/lib/python3/dist-packages\nRUN mkdir /app\n"
        contexts["PYTHON"] = {"Dockerfile": copied}
        (folder / "PYTHON/packages").mkdir(parents=True)
        for package in PYTEST:
            source = Path(sysconfig.get_path("purelib")) / package
            subprocess.run(["cp", "-r", source, folder / "PYTHON/packages"], check=True)
    images: dict[str, str] = {}
    for name, files in contexts.items():
        for file, text in files.items():
            (folder / name).mkdir(exist_ok=True)
            (folder / name / file).write_text(text.replace("FROM BUSYBOX", f"FROM {images.get('BUSYBOX')}"))
        if name == "BUSYBOX":
            subprocess.run(["cp", busybox, folder / name / "busybox"], check=True)
        command = ["docker", "build", "-q", "--network", "none", str(folder / name)]
        images[name] = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        made.append(images[name])
    return images


def remove(image: str) -> None:
    """A container of it may be about to be removed, of a session that has ended."""
    for _ in range(600):
        done = subprocess.run(["docker", "rmi", "-f", image], check=False, capture_output=True, text=True)
        if done.returncode == 0 or "No such image" in done.stderr:  # gone with one that was made of it
            return
        time.sleep(0.1)
    raise AssertionError(f"{image} is left: {done.stderr}")
