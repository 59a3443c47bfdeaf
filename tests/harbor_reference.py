"""Answers with Harbor's own classes, in its own environment: `python harbor_reference.py < questions > answers`.

Each line of standard input is JSON: {"toml": TEXT}, answered with what `TaskConfig` read, or {"file": NAME, "data":
HEX}, answered with what `Verifier` takes from a reward file, or {"trajectory": JSON}, answered with the token ids of
the steps that `Trajectory` read. An answer is {"value": ...} or {"refused": TEXT}.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Paths:
    reward_text_path: Path
    reward_json_path: Path


def machine(given: Any) -> Any:
    return {
        "image": given.docker_image or "",
        "build_timeout_s": given.build_timeout_sec,
        "cpus": float(given.cpus or 0),
        "memory_mib": given.memory_mb or 0,
        "disk_mib": given.storage_mb or 0,
        "env": given.env,
        "workdir": given.workdir or "",
        "skills": given.skills_dir or "",
        "network": network(given.network_mode, given.allowed_hosts),
        "health": health(given.healthcheck),
    }


def network(mode: Any, hosts: Any) -> Any:
    if mode is None:
        return None
    return "public" if mode.value == "public" else sorted(hosts or []) if mode.value == "allowlist" else []


def health(given: Any) -> Any:
    return given and {key.replace("_sec", "_s"): value for key, value in given.model_dump().items()}


def agent(given: Any) -> Any:
    user = "" if given.user is None else str(given.user)
    return {"timeout_s": given.timeout_sec, "user": user, "network": network(given.network_mode, given.allowed_hosts)}


def verifier(given: Any) -> Any:
    from harbor.models.task.verifier_mode import _resolve_mode

    mode = _resolve_mode(given)
    return {
        "timeout_s": given.timeout_sec,
        "env": given.env,
        "user": "" if given.user is None else str(given.user),
        "network": network(given.network_mode, given.allowed_hosts),
        "separate": None if mode is None else mode.value == "separate",
        "machine": given.environment and machine(given.environment),
        "collect": [
            {"command": one.command, "timeout_s": one.timeout_sec, "user": "" if one.user is None else str(one.user)}
            for one in given.collect
        ],
    }


def artifacts(given: Any) -> Any:
    return [
        {"source": one, "exclude": []} if isinstance(one, str) else {"source": one.source, "exclude": one.exclude}
        for one in given
    ]


def least(given: Any) -> Any:
    return {} if given is None else given if isinstance(given, dict) else {"reward": given}


def config(text: str) -> Any:
    from harbor.models.task.config import TaskConfig

    read = TaskConfig.model_validate_toml(text)
    return {
        "name": read.task.name if read.task else "",
        "agent": agent(read.agent),
        "verifier": verifier(read.verifier),
        "machine": machine(read.environment),
        "solution_env": read.solution.env,
        "artifacts": artifacts(read.artifacts),
        "strategy": read.multi_step_reward_strategy.value if read.multi_step_reward_strategy else "mean",
        "steps": [
            {
                "name": one.name,
                "agent": agent(one.agent),
                "verifier": verifier(one.verifier),
                "least": least(one.min_reward),
                "health": health(one.healthcheck),
                "artifacts": artifacts(one.artifacts),
            }
            for one in read.steps or []
        ],
    }


def rewards(name: str, data: bytes) -> Any:
    from harbor.verifier.verifier import Verifier

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)

        class OfOneFile(Verifier):
            def __init__(self) -> None:
                self.trial_paths = Paths(path, path)

        reader = OfOneFile()
        return reader._parse_reward_json() if name == "reward.json" else reader._parse_reward_text()


def trajectory(given: Any) -> Any:
    from harbor.models.trajectories import Trajectory

    steps = Trajectory.model_validate(given).steps
    return [[one.metrics.prompt_token_ids, one.metrics.completion_token_ids] for one in steps if one.metrics]


def main() -> None:
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "toml" in asked:
                answer = {"value": config(asked["toml"])}
            elif "trajectory" in asked:
                answer = {"value": trajectory(asked["trajectory"])}
            else:
                answer = {"value": rewards(asked["file"], bytes.fromhex(asked["data"]))}
        except Exception as error:
            answer = {"refused": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
