"""Random task.toml files and reward files, right and wrong ones, the same for a seed."""

from __future__ import annotations

import json
import random
from typing import Any


def task_toml(seed: int) -> str:
    """One file; about a third have something wrong or unusual in them."""
    draw = random.Random(seed)
    top: dict[str, Any] = {"schema_version": draw.choice(["1.0", "1.4", "9.9"])}
    if draw.random() < 0.3:
        top["artifacts"] = [_artifact(draw) for _ in range(draw.randint(0, 3))]
    if draw.random() < 0.7:
        names = ["org/name", "a-b.c/d_e", "Org1/x", "org/na..me", "noslash", "-a/b", "org/név"]
        top["task"] = {"name": draw.choice(names[: 3 if draw.random() < 0.9 else 7]), "keywords": ["a", "b"]}
    for key, make in (("environment", _machine), ("agent", _agent), ("verifier", _verifier)):
        if draw.random() < 0.8:
            top[key] = make(draw)
    if draw.random() < 0.3:
        top["solution"] = {"env": {"A": "1", "B": "${HOME}"}}
    if draw.random() < 0.3:
        top["multi_step_reward_strategy"] = _odd(draw, draw.choice(["mean", "final"]), "median")
        top["steps"] = [_step(draw, number) for number in range(draw.randint(1, 3))]
    if draw.random() < 0.2:
        top["unknown"], top["metadata"] = {"key": 1}, {"difficulty": "hard", "category": "x", "more": [1, 2]}
    return toml(top)


def reward_file(seed: int) -> tuple[str, bytes]:
    """Its name and bytes."""
    draw = random.Random(seed)
    words = ["nan", "inf", "-Infinity", "", "one", "1 2", "true", "0x1", "\u0661", "1,0", "--1", "\ufeff1"]
    numbers = ["1", "0", "0.5", " 1\n", "1.0e0", "7.5", "-3", "1e309", "1_0", "\t0.25 ", "+1", ".5", "1.", *words]
    if draw.random() < 0.5:
        return "reward.txt", draw.choice([*numbers, "\xff"]).encode(
            "latin-1" if draw.random() < 0.05 else "utf-8", "replace"
        )
    values = [
        "1",
        "0.5",
        "true",
        "false",
        "null",
        '"1"',
        "[1]",
        "NaN",
        "Infinity",
        "1e309",
        "{}",
        "-2",
        "12345678901234567890",
    ]
    pairs = [f'"{draw.choice("abc")}{number}": {draw.choice(values[: 2 if draw.random() < 0.5 else None])}'
             for number in range(draw.randint(0, 3))]  # fmt: skip
    whole = "{" + ", ".join(pairs) + "}"
    return "reward.json", draw.choice([whole, whole, whole, "1", "[1, 2]", "", "{", '{"reward": 1} x', '"a"']).encode()


def toml(value: dict[str, Any]) -> str:
    """As inline values, which TOML allows for all that is drawn here."""
    return "\n".join(f"{json.dumps(key)} = {_inline(one)}" for key, one in value.items())


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_inline(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _odd(draw: random.Random, usual: Any, *odd: Any) -> Any:
    return draw.choice(odd) if draw.random() < 0.05 else usual


def _some(draw: random.Random, fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if draw.random() < 0.4}


def _network(draw: random.Random) -> dict[str, Any]:
    hosts = ["pypi.org", "*.Example.org.", "10.0.0.1", "a-b.c"]
    odd = ["https://x.org", "x.org:80", "a b", "", "*.1.2.3.4", "x*.org", "2001:DB8::1", "10.0.0.0/8"]
    drawn = draw.random()
    if drawn < 0.5:
        return {}
    if drawn < 0.7:
        return {"network_mode": _odd(draw, draw.choice(["public", "no-network"]), "none", 3)}
    if drawn < 0.75:
        return {"network_mode": "public", "allowed_hosts": [draw.choice(hosts)]}
    chosen = [draw.choice(odd) if draw.random() < 0.1 else draw.choice(hosts) for _ in range(draw.randint(0, 3))]
    return {"network_mode": "allowlist", "allowed_hosts": chosen} if drawn < 0.98 else {"allowed_hosts": chosen}


def _agent(draw: random.Random) -> dict[str, Any]:
    fields = {
        "timeout_sec": _odd(draw, draw.choice([60, 900.0]), "900", True),
        "user": _odd(draw, draw.choice(["agent", 1000, "1000"]), 1.5),
    }
    return {**_some(draw, fields), **_network(draw)}


def _health(draw: random.Random) -> dict[str, Any]:
    fields = {"interval_sec": 1, "timeout_sec": 2.5, "start_period_sec": 3, "start_interval_sec": 0.5}
    retries = _odd(draw, draw.choice([1, 5]), 2.0, 2.5, "3")
    return {**({"command": "true"} if draw.random() < 0.95 else {}), **_some(draw, {**fields, "retries": retries})}


def _machine(draw: random.Random) -> dict[str, Any]:
    fields = {
        "build_timeout_sec": 30.5,
        "docker_image": "busybox:1",
        "os": _odd(draw, draw.choice(["linux", "Linux"]), "windows", "bsd"),
        "cpus": _odd(draw, draw.choice([1, 2.0, 0.5]), "2", True),
        "memory_mb": _odd(draw, draw.choice([512, 2048]), 2048.0, 2.5, "2G"),
        "storage_mb": 10240,
        "gpus": _odd(draw, 0, 1),
        "env": _odd(draw, {"A": "b", "C": "${D:-e}"}, {"A": 1}, ["A"]),
        "workdir": "/app",
        "skills_dir": "/skills",
        "healthcheck": _health(draw),
        "allow_internet": draw.choice([True, False]),
        "unknown": 1,
    }
    made = {**_some(draw, fields), **_network(draw)}
    if draw.random() < 0.15:
        made["memory"] = draw.choice(["2G", "512M", "4096K", "1.5G", "2", "xG", 5])
    if draw.random() < 0.1:
        made["storage"] = draw.choice(["10G", "10240M", "1g "])
    return made


def _verifier(draw: random.Random) -> dict[str, Any]:
    fields = {
        "timeout_sec": _odd(draw, draw.choice([30, 900.0]), "x"),
        "env": {"KEY": "value"},
        "user": draw.choice(["root", 0]),
        "environment_mode": _odd(draw, draw.choice(["shared", "separate"]), "both"),
        "collect": [
            _some(draw, {"timeout_sec": 5, "user": "root", "service": _odd(draw, "main", "db")})
            | {"command": "make dump"}
        ],
    }
    made = {**_some(draw, fields), **_network(draw)}
    if draw.random() < 0.2:
        made["environment"] = _machine(draw)
    return made


def _artifact(draw: random.Random) -> Any:
    source = _odd(draw, draw.choice(["/app", "/app/out.txt", "rel/file", "/logs/artifacts"]), "/a/../b", "..", "")
    if draw.random() < 0.5:
        return source
    to = (
        draw.choice(["out", "a/b", "./x"])
        if draw.random() < 0.8
        else draw.choice(["/abs", "../x", "manifest.json", "."])
    )
    return {"source": source, **_some(draw, {"destination": to, "exclude": ["*.pyc"], "service": "main"})}


def _step(draw: random.Random, number: int) -> dict[str, Any]:
    fields = {
        "agent": _agent(draw),
        "verifier": _verifier(draw),
        "min_reward": _odd(draw, draw.choice([0.5, 1, {"a": 1, "b": 0.5}]), "1", {"a": "1"}),
        "healthcheck": _health(draw),
        "artifacts": [_artifact(draw)],
    }
    return {"name": _odd(draw, f"step-{number}", "a/b", "con", "x.", "", "STEP-0"), **_some(draw, fields)}
