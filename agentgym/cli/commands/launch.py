"""`agentgym launch`: a recipe on a cluster."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from agentgym.cli.jobs import JobShell
from agentgym.cli.recipes import finish, read_recipe
from agentgym.cli.recording import default_name
from agentgym.commands.parser import Parser
from agentgym.config import to_mapping
from agentgym.errors import DISTRIBUTION, InfraError, UserError
from agentgym.run.clusters import (
    SKY_RUNS,
    Order,
    Plain,
    Pods,
    SkyTask,
    kubernetes_objects,
    patched,
    patched_objects,
    skypilot_task,
    slurm_script,
)
from agentgym.stability import VERSION
from agentgym.yaml import dump_yaml, read_documents

DESCRIPTION = """
Run a recipe on a cluster: one allocation holds the controller and the hosts of its trainer and generators. What the
scheduler is given is written into launches/NAME/ and submitted; --dry-run prints it.

A run that is preempted saves within --notice seconds, and is continued in its next allocation.
"""
EXAMPLES = """
agentgym launch slurm apps/grpo/qwen3_0.6b.yaml --nodes 2 --gpus 8 --option=--partition=gpu --option=--time=4:00:00
agentgym launch slurm apps/grpo/code_exec_sync.yaml --nodes 3 --hosts.trainer [node1] --dry-run
agentgym launch kubernetes apps/grpo/qwen3_0.6b.yaml --image my/agentgym:1 --nodes 2 --gpus 8 --claim shared
agentgym launch skypilot apps/grpo/qwen3_0.6b.yaml --accelerators H100:8 --nodes 2 --volume my-runs --secret HF_TOKEN
"""
TAKES_OVERRIDES = True
LAUNCHES = Path("launches")
SUBMIT = {"slurm": ["sbatch"], "kubernetes": ["kubectl", "apply", "-f"], "skypilot": ["sky", "jobs", "launch", "--yes"]}
NAME = re.compile("[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?")  # every scheduler takes it, and Kubernetes as a host's name
TORCH, VLLM = "torch==2.13.0", "vllm==0.32.0"
VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def add_arguments(parser: Parser) -> None:
    clusters = parser.add_subparsers(dest="action", metavar="CLUSTER", required=True, parser_class=Parser)
    slurm = _cluster(clusters, "slurm", "a batch job of SLURM (sbatch)")
    slurm.add_argument("--option", action="append", default=[], metavar="--NAME=VALUE", help="one more of sbatch's")
    pods = _cluster(clusters, "kubernetes", "an indexed Job of Kubernetes 1.33 or later (kubectl)")
    pods.add_argument("--image", required=True, help="has bash, Python, and agentgym with its extra train")
    pods.add_argument("--namespace", default="default")
    pods.add_argument("--claim", default="", help="a PersistentVolumeClaim that all pods can write, for the runs")
    pods.add_argument("--mount", default="/work", metavar="FOLDER", help="where it is mounted (default /work)")
    pods.add_argument("--secret", default="", help="whose keys become environment variables")
    pods.add_argument("--memory", default="", metavar="SIZE", help="of each pod, as 64Gi")
    pods.add_argument("--shared-memory", default="16Gi", metavar="SIZE", help="of /dev/shm, for the weights")
    sky = _cluster(clusters, "skypilot", "a managed job of SkyPilot (sky jobs launch)")
    sky.add_argument("--accelerators", default="", metavar="NAME:COUNT", help="of each node, as H100:8")
    sky.add_argument("--infra", default="", help="where, as SkyPilot says it: aws/us-east-1, k8s, slurm/name")
    sky.add_argument("--volume", default="", help="one of `sky volumes`, for the runs: all nodes must see it")
    sky.add_argument("--secret", action="append", default=[], metavar="NAME", help="a variable of here, for the task")
    sky.add_argument("--setup", default="", metavar="COMMAND", help=f"on each machine (default: {_installing(True)})")
    sky.add_argument("--option", action="append", default=[], metavar="--NAME=VALUE", help="of `sky jobs launch`")
    for cluster in (pods, sky):
        cluster.add_argument("--patch", metavar="FILE", help="YAML laid over what is written, by kind or as a task")


def _cluster(clusters: argparse._SubParsersAction[Parser], name: str, summary: str) -> Parser:
    examples = "\n".join(line for line in EXAMPLES.splitlines() if f"launch {name}" in line)
    parser = clusters.add_parser(name, help=summary, description=DESCRIPTION.strip(), examples=examples)
    parser.add_argument("recipe_files", nargs="+", metavar="RECIPE", help="of several, the later changes the earlier")
    parser.add_argument("--name", help="the run's name (default: environment, date and time)")
    parser.add_argument("--runs-dir", metavar="DIR", help="where run folders are made")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="machines (default 1)")
    parser.add_argument("--cpus", type=int, default=0, metavar="N", help="of each machine (SLURM's default: all)")
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="of each machine")
    parser.add_argument(
        "--variable", action="append", default=[], metavar="NAME=VALUE", help="of the environment there"
    )
    parser.add_argument("--notice", type=int, default=120, metavar="S", help="seconds a run has to save (default 120)")
    parser.add_argument("--restarts", type=int, default=3, metavar="N", help="of a run that fails (default 3)")
    parser.add_argument("--python", default="", metavar="PATH", help="on the machines")
    parser.add_argument("--dry-run", action="store_true", help="print what would be submitted")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.set_defaults(env=None, agent=None, reward=None)
    return parser


def run(arguments: argparse.Namespace, shell: JobShell) -> int:
    cluster = arguments.action
    program, *submit = SUBMIT[cluster]
    if not arguments.dry_run and shutil.which(program) is None:
        raise UserError(f"{cluster} needs {program}, which is not on the PATH here; --dry-run prints what it would get")
    base, where = read_recipe(arguments.recipe_files)
    flags = {"logging.runs_dir": arguments.runs_dir}
    recipe, _, _ = finish({**base, "launcher": {"name": cluster}}, flags, arguments, where, shell)
    name = arguments.name or default_name(recipe).replace("_", "-").lower()
    if not NAME.fullmatch(name):
        raise UserError(f"{name!r} can't name a launched run; use at most 50 small letters, digits and -")
    if (Path(recipe.logging.runs_dir) / name).exists():
        raise UserError(f"there is a run {name!r} in {recipe.logging.runs_dir!r} already; choose another --name")
    folder = LAUNCHES / name
    if cluster == "skypilot" and not arguments.volume and not Path(recipe.logging.runs_dir).is_absolute():
        shell.warn(_lost(recipe.logging.runs_dir, arguments.nodes))
    if cluster == "skypilot" and arguments.volume:
        recipe = replace(recipe, logging=replace(recipe.logging, runs_dir=SKY_RUNS))
    mapping = to_mapping(recipe)
    if cluster == "kubernetes":
        launcher = mapping["launcher"]
        assert isinstance(launcher, dict)
        mapping["launcher"] = {**launcher, "job": name, "num_hosts": arguments.nodes}
    recipe_text = dump_yaml(mapping)
    text = _WRITERS[cluster](arguments, name, recipe.logging.runs_dir, recipe_text)
    script = folder / ("job.sh" if cluster == "slurm" else f"{cluster}.yaml")
    if cluster == "skypilot":
        submit += [*(f"--secret={name}" for name in arguments.secret), *arguments.option]
    command = [program, *submit, str(script)]
    if arguments.dry_run:
        shell.say(f"{text.rstrip()}\n\nNothing was submitted. This would be {script}, with {folder}/recipe.yaml, for:")
        shell.say(f"  {shlex.join(command)}")
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(recipe_text, encoding="utf-8")
    script.write_text(text, encoding="utf-8")
    done = subprocess.run(command, capture_output=True, text=True)
    said = (done.stdout + done.stderr).strip()
    if done.returncode:
        raise InfraError(f"`{shlex.join(command)}` failed: {said}")
    shell.say(f"{said}\nwritten to {folder}; once it has begun: agentgym status {Path(recipe.logging.runs_dir) / name}")
    return 0


def _order(arguments: argparse.Namespace, name: str, runs_dir: str, *, recipe: str, folder: str, python: str) -> Order:
    return Order(
        name=name,
        recipe=recipe,
        runs_dir=runs_dir,
        folder=folder,
        python=arguments.python or python,
        num_nodes=arguments.nodes,
        cpus=arguments.cpus,
        variables=_variables(arguments.variable),
        gpus=arguments.gpus,
        notice_s=arguments.notice,
        restarts=arguments.restarts,
    )


def _slurm(arguments: argparse.Namespace, name: str, runs_dir: str, recipe: str) -> str:
    where = str(LAUNCHES / name / "recipe.yaml")
    order = _order(arguments, name, runs_dir, recipe=where, folder=str(Path.cwd()), python=sys.executable)
    return slurm_script(order, log=str(Path.cwd() / LAUNCHES / name / "job-%j.log"), options=arguments.option)


def _kubernetes(arguments: argparse.Namespace, name: str, runs_dir: str, recipe: str) -> str:
    where = "/etc/agentgym/recipe.yaml"
    order = _order(arguments, name, runs_dir, recipe=where, folder=arguments.mount, python="python")
    pods = Pods(
        image=arguments.image,
        namespace=arguments.namespace,
        claim=arguments.claim,
        mount=arguments.mount,
        secret=arguments.secret,
        memory=arguments.memory,
        shared_memory=arguments.shared_memory,
    )
    objects = patched_objects(kubernetes_objects(order, pods, recipe), _patches(arguments.patch))
    return "---\n".join(dump_yaml(one, blocks=True) for one in objects)


def _skypilot(arguments: argparse.Namespace, name: str, runs_dir: str, recipe: str) -> str:
    where = f"/tmp/agentgym-{name}.yaml"
    order = _order(arguments, name, runs_dir, recipe=where, folder=".", python="python")
    has_gpus = bool(arguments.accelerators or arguments.gpus)
    sky = SkyTask(
        local_recipe=str(LAUNCHES / name / "recipe.yaml"),
        setup=arguments.setup or _installing(has_gpus),
        accelerators=arguments.accelerators,
        infra=arguments.infra,
        volume=arguments.volume,
        secrets=arguments.secret,
    )
    task = skypilot_task(order, sky)
    for patch in _patches(arguments.patch):
        task = patched(task, patch)
    return dump_yaml(task, blocks=True)


def _installing(has_gpus: bool) -> str:
    """Installs the checkout in this folder, which the machine gets, or where it is none this version by its name."""
    in_checkout = Path("agentgym", "errors.py").is_file() and Path("pyproject.toml").is_file()
    ours = "-e '.[train]'" if in_checkout else f"'{DISTRIBUTION}[train]=={VERSION}'"
    return f"pip install {TORCH}{f' {VLLM}' if has_gpus else ''} && pip install {ours}"


def _lost(runs_dir: str, num_nodes: int) -> str:
    """What to say of a runs folder that is on a node's own disk. Raises UserError where several nodes need one."""
    kept = (
        "--volume NAME (`sky volumes apply`), or --runs-dir with the absolute path of a filesystem that the machines "
        "have, or --setup mounts; not a bucket, which cannot append, rename and lock"
    )
    if num_nodes > 1:
        raise UserError(f"{num_nodes} nodes of SkyPilot share no folder {runs_dir!r} for the run; give {kept}")
    return f"the run is lost with its machine; to keep it give {kept}"


def _variables(given: list[str]) -> dict[str, str]:
    found = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not VARIABLE.fullmatch(name):
            raise UserError(f"--variable {one!r} is not NAME=VALUE, as in --variable=HF_HOME=/models")
        found[name] = value
    return found


def _patches(path: str | None) -> list[Plain]:
    return read_documents(path) if path else []


_WRITERS = {"slurm": _slurm, "kubernetes": _kubernetes, "skypilot": _skypilot}
