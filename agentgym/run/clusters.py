"""What a scheduler is given to run a recipe: a batch script of SLURM, objects of Kubernetes, a task of SkyPilot.

Each starts the run, or continues it where its folder already has a state: that is the whole of a requeue.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from agentgym.errors import UserError, nearest

Plain: TypeAlias = dict[str, object]  # what YAML holds

SAVED = 75  # the exit code of a run that was preempted and has saved
HEAD_S = 10  # of the notice that are left for what follows the run
CPU_OPTIONS = ("-c", "--cpus-per-task", "--cpus-per-gpu", "--exclusive", "--tres-per-task")
SKY_RUNS = "/agentgym-runs"  # where the nodes of a SkyPilot task have its volume


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A run to be launched. folder: where its command starts, on the machines. recipe, runs_dir: from there.

    cpus, gpus: of each node; without cpus all of a node's. variables: of the environment there. notice_s: from the
    scheduler's signal to its end. restarts: after failures, without a new allocation.
    """

    name: str
    recipe: str
    runs_dir: str
    folder: str
    python: str
    num_nodes: int = 1
    cpus: int = 0
    gpus: int = 0
    variables: Mapping[str, str] = field(default_factory=dict)
    notice_s: int = 120
    restarts: int = 3

    def __post_init__(self) -> None:
        if self.num_nodes < 1 or min(self.cpus, self.gpus, self.restarts) < 0 or self.notice_s <= HEAD_S:
            raise UserError(
                f"--nodes {self.num_nodes} must be at least 1, --cpus {self.cpus}, --gpus {self.gpus} and --restarts "
                f"{self.restarts} at least 0, and --notice {self.notice_s} above {HEAD_S} seconds"
            )

    @property
    def choose(self) -> str:
        """Shell: `set --` with what the run is started or continued by."""
        run = shlex.quote(str(Path(self.runs_dir) / self.name))
        words = [self.recipe, "--name", self.name, "--runs-dir", self.runs_dir]
        return "\n".join(
            [
                f"run={run}",
                'if [ -e "$run/state.json" ]; then set -- --resume "$run" --trust',  # a pod's home has no key
                "else  # one that had not saved anything begins again",
                '  if [ -e "$run" ]; then mv "$run" "$run-unsaved-$(date +%s)"; fi',
                f"  set -- {shlex.join(words)}",
                "fi",
            ]
        )

    @property
    def train(self) -> str:
        """Shell: the controller."""
        flags = ["--plain", "--grace", str(self.notice_s - HEAD_S), "--restarts", str(self.restarts)]
        return f'{self.agentgym} train "$@" {shlex.join(flags)}'

    @property
    def agentgym(self) -> str:
        return f"{shlex.quote(self.python)} -m agentgym.cli.main"


def run_and_wait(command: str, notice: str) -> str:
    """Shell: run it, and hand it the scheduler's notice, a signal, at whatever time that comes. A signal ends a wait,
    not the run.

    A scheduler sends SIGTERM to every process itself, and the controller would take a second one as an order to stop.
    """
    return f"""
controller=; noticed=; told=
trap 'noticed=1; if [ -n "$controller" ]; then told=1; kill -TERM "$controller"; fi' {notice}
{"trap : TERM" if notice != "TERM" else ""}
{command} &
controller=$!
if [ -n "$noticed" ] && [ -z "$told" ]; then kill -TERM "$controller"; fi
while kill -0 "$controller" 2>/dev/null; do wait "$controller"; done
wait "$controller"; code=$?
""".strip().replace("\n\n", "\n")


def slurm_script(order: Order, *, log: str, options: Sequence[str] = ()) -> str:
    """The batch script for sbatch. log: the file for all that is printed. options: more of sbatch's, as
    `--partition=gpu`; those that choose CPUs replace ours.
    """
    cpus = [f"--cpus-per-task={order.cpus}"] if order.cpus else ["--exclusive"]  # else a task gets one core
    chosen = any(option.startswith(CPU_OPTIONS) for option in options)
    given = [
        f"--job-name={order.name}",
        f"--nodes={order.num_nodes}",
        "--ntasks-per-node=1",
        *([] if chosen else cpus),
        *([f"--gpus-per-node={order.gpus}"] if order.gpus else []),
        f"--chdir={order.folder}",
        f"--output={log}",
        "--open-mode=append",
        "--requeue",
        "--no-kill",  # a node that is lost does not end the others
        f"--signal=B:USR1@{order.notice_s}",
        *options,
    ]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in given),
        *(f"export {name}={shlex.quote(value)}" for name, value in order.variables.items()),
        order.choose,
        run_and_wait(order.train, "USR1"),
        f'if [ "$code" -eq {SAVED} ] && [ -n "$noticed" ]; then scontrol requeue "$SLURM_JOB_ID"; fi',
        'exit "$code"',
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """claim: a PersistentVolumeClaim that all pods can write, mounted at `mount`. secret: its keys become variables."""

    image: str
    namespace: str = "default"
    claim: str = ""
    mount: str = "/work"
    secret: str = ""
    memory: str = ""
    shared_memory: str = "16Gi"


def kubernetes_objects(order: Order, pods: Pods, recipe: str) -> list[Plain]:
    """A ConfigMap with the recipe, a headless Service that gives the pods their names, and one indexed Job.

    Each pod is a host; the first is the controller, too, and its success is the Job's. recipe: its text.
    """
    labels: Plain = {"app.kubernetes.io/name": "agentgym"}
    metadata: Plain = {"name": order.name, "namespace": pods.namespace, "labels": labels}
    selector = {"job-name": order.name}
    command = "\n".join(
        [
            f"cd {shlex.quote(order.folder)} || exit",
            f'if [ "$JOB_COMPLETION_INDEX" -ne 0 ]; then exec {order.agentgym} host; fi',
            f"{order.agentgym} host &",
            order.choose,
            f"exec {order.train}",
        ]
    )
    amounts = {"cpu": str(order.cpus or ""), "memory": pods.memory, "nvidia.com/gpu": str(order.gpus or "")}
    resources = {name: amount for name, amount in amounts.items() if amount}
    volumes: list[Plain] = [
        {"name": "recipe", "configMap": {"name": order.name}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": pods.shared_memory}},
    ]
    mounts: list[Plain] = [
        {"name": "recipe", "mountPath": str(Path(order.recipe).parent)},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "work", "mountPath": pods.mount},
    ]
    work: Plain = {"persistentVolumeClaim": {"claimName": pods.claim}} if pods.claim else {"emptyDir": {}}
    volumes.append({"name": "work", **work})
    container: Plain = {
        "name": "agentgym",
        "image": pods.image,
        "command": ["bash", "-c", command],
        "resources": {"requests": resources, "limits": resources},
        "env": [{"name": name, "value": value} for name, value in order.variables.items()],
        "volumeMounts": mounts,
    }
    if pods.secret:
        container["envFrom"] = [{"secretRef": {"name": pods.secret}}]
    retried: list[Plain] = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Ignore", "onExitCodes": {"containerName": "agentgym", "operator": "In", "values": [SAVED]}},
        {"action": "FailJob", "onExitCodes": {"containerName": "agentgym", "operator": "In", "values": [2]}},
    ]
    job: Plain = {
        "completions": order.num_nodes,
        "parallelism": order.num_nodes,
        "completionMode": "Indexed",
        "backoffLimit": order.restarts * order.num_nodes,
        "podFailurePolicy": {"rules": retried},  # a preemption is not a failure, and a user's mistake is final
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
        "template": {
            "metadata": {"labels": labels},
            "spec": {
                "subdomain": order.name,
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": order.notice_s,
                "containers": [container],
                "volumes": volumes,
            },
        },
    }
    service: Plain = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {Path(order.recipe).name: recipe}},
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job},
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkyTask:
    """local_recipe: the file here that the order's recipe is there. volume: of SkyPilot, mounted as the runs folder.

    secrets: names of variables whose values `sky` takes from the environment here, not from the file.
    """

    local_recipe: str
    setup: str
    accelerators: str = ""
    infra: str = ""
    volume: str = ""
    secrets: Sequence[str] = ()


def skypilot_task(order: Order, sky: SkyTask) -> Plain:
    """A task for `sky jobs launch`, which starts it again after a preemption."""
    run = "\n".join(
        [
            f'if [ "$SKYPILOT_NODE_RANK" -ne 0 ]; then exec {order.agentgym} host --once; fi',
            f"{order.agentgym} host & host=$!",
            order.choose,
            run_and_wait(order.train, "TERM"),
            'kill "$host"; exit "$code"',
        ]
    )
    resources = {"accelerators": sky.accelerators, "cpus": f"{order.cpus}+" if order.cpus else "", "infra": sky.infra}
    sections: Plain = {
        "envs": dict(order.variables),
        "secrets": dict.fromkeys(sky.secrets),
        "volumes": {SKY_RUNS: sky.volume} if sky.volume else {},
        "resources": {key: value for key, value in resources.items() if value},
    }
    return {
        "name": order.name,
        "num_nodes": order.num_nodes,
        "workdir": ".",
        "file_mounts": {order.recipe: sky.local_recipe},
        **{name: section for name, section in sections.items() if section},
        "setup": sky.setup,
        "run": run,
    }


def patched(plain: Plain, patch: Mapping[str, object]) -> Plain:
    """The sections of `patch` over those of `plain`; null removes one.

    Lists whose items have a `mountPath`, or else a `name`, are merged by it, as Kubernetes does; others are replaced.
    """
    result = dict(plain)
    for key, value in patch.items():
        before = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(before, dict):
            result[key] = patched(before, value)
        elif isinstance(value, list) and isinstance(before, list) and (by := _merge_key([*before, *value])):
            items = {item[by]: item for item in before}
            for item in value:
                items[item[by]] = patched(items.get(item[by], {}), item)
            result[key] = [*items.values()]
        else:
            result[key] = value
    return result


def _merge_key(items: Sequence[object]) -> str:
    for key in ("mountPath", "name"):
        if items and all(isinstance(item, dict) and key in item for item in items):
            return key
    return ""


def patched_objects(objects: Sequence[Plain], patches: Sequence[Mapping[str, object]]) -> list[Plain]:
    """Objects of Kubernetes, each with the patches of its kind. Raises UserError for a patch of another kind."""
    kinds = [str(one["kind"]) for one in objects]
    for patch in patches:
        if (kind := patch.get("kind")) not in kinds:
            raise UserError(f"there is no object of kind {kind!r} to patch.{nearest(str(kind), kinds)}")
    result = list(objects)
    for patch in patches:
        index = kinds.index(str(patch["kind"]))
        result[index] = patched(result[index], patch)
    return result
