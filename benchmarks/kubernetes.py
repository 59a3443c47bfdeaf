"""What `agentgym launch kubernetes` writes, in a real control plane: applied, and its pods ended in every way.

The API server validates the objects strictly, and Kubernetes' own controllers make the pods and judge their ends. There
is no kubelet: this program says in its place that a pod runs, or how its container ended. It needs no image, no root.

    python benchmarks/kubernetes.py FOLDER --binaries BIN    # BIN has etcd, kube-apiserver and kube-controller-manager

kubectl must be on the PATH. Prints one line for each claim; exit code 1 when one does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from agentgym.actors.launchers.cluster import KubernetesLauncher

AGENTGYM = (sys.executable, "-m", "agentgym.cli.main")
TOKEN = "drill"  # the server listens on this machine alone, and ends with this program
NODES, TIMEOUT_S = 3, 60.0
CONTROLLERS = "job-controller,endpointslice-controller,garbage-collector-controller,namespace-controller"
RECIPE = "env: {name: math}\n"
T = TypeVar("T")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def until(ask: Callable[[], T], what: str, timeout_s: float = TIMEOUT_S) -> T:
    """The first answer that is true."""
    end_s = time.monotonic() + timeout_s
    while not (answer := ask()):
        if time.monotonic() > end_s:
            raise SystemExit(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.2)
    return answer


@contextlib.contextmanager
def control_plane(folder: Path, binaries: Path) -> Iterator[Path]:
    """Yields the kubeconfig."""
    ports = {name: free_port() for name in ("etcd", "peer", "api", "manager")}
    etcd, api = f"http://127.0.0.1:{ports['etcd']}", f"https://127.0.0.1:{ports['api']}"
    key, tokens, config = folder / "key.pem", folder / "tokens.csv", folder / "kubeconfig"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    tokens.write_text(f"{TOKEN},drill,drill,system:masters\n")
    cluster = {"name": "one", "cluster": {"server": api, "insecure-skip-tls-verify": True}}
    user, context = {"name": "one", "user": {"token": TOKEN}}, {"cluster": "one", "user": "one"}
    of_config = {"apiVersion": "v1", "kind": "Config", "current-context": "one", "clusters": [cluster], "users": [user]}
    config.write_text(json.dumps({**of_config, "contexts": [{"name": "one", "context": context}]}))
    peer = f"http://127.0.0.1:{ports['peer']}"
    commands = {
        "etcd": f"--data-dir={folder}/etcd --listen-client-urls={etcd} --advertise-client-urls={etcd} "
        f"--listen-peer-urls={peer} --initial-advertise-peer-urls={peer} --initial-cluster=default={peer}",
        "kube-apiserver": f"--etcd-servers={etcd} --bind-address=127.0.0.1 --secure-port={ports['api']} "
        f"--cert-dir={folder}/certificates --token-auth-file={tokens} --authorization-mode=AlwaysAllow "
        f"--service-account-issuer=https://drill --service-account-key-file={key} "
        f"--service-account-signing-key-file={key} --service-cluster-ip-range=10.0.0.0/24 "
        "--disable-admission-plugins=ServiceAccount",
        "kube-controller-manager": f"--kubeconfig={config} --controllers={CONTROLLERS} --leader-elect=false "
        f"--bind-address=127.0.0.1 --secure-port={ports['manager']} --cert-dir={folder}/certificates-of-manager",
    }
    ready = ["kubectl", f"--kubeconfig={config}", "get", "--raw=/readyz"]
    with contextlib.ExitStack() as stack:
        for name, words in commands.items():
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            running = subprocess.Popen([binaries / name, *words.split()], stdout=log, stderr=log)
            stack.callback(running.wait)
            stack.callback(running.kill)
            if name == "kube-apiserver":
                until(lambda: not subprocess.run(ready, capture_output=True).returncode, "the server is ready", 300.0)
        yield config


@dataclass(slots=True, kw_only=True)
class Drill:
    folder: Path
    kubeconfig: Path
    good: bool = True

    def claim(self, text: str, holds: bool) -> None:
        self.good &= holds
        print(f"{'yes' if holds else 'NO '}  {text}", flush=True)

    def kubectl(self, *words: str, given: str | None = None) -> str:
        command = ["kubectl", f"--kubeconfig={self.kubeconfig}", *words]
        done = subprocess.run(command, input=given, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"kubectl {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def get(self, *words: str) -> Any:
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def launch(self, name: str, *words: str) -> None:
        """As a user does; the answer of the API server is the command's."""
        command = ["launch", "kubernetes", "recipe.yaml", "--image", "none", "--name", name, "--nodes", str(NODES)]
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        done = subprocess.run(
            [*AGENTGYM, *command, *words], cwd=self.folder, env=environment, capture_output=True, text=True
        )
        objects = str(self.folder / f"launches/{name}/kubernetes.yaml")
        self.claim(f"{name}: launched: {' '.join((done.stdout + done.stderr).split())}", done.returncode == 0)
        strict = self.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", objects)
        self.claim(f"{name}: no field is unknown or given twice to the API server", strict.count("server dry run") == 3)
        until(lambda: len(self.pods(name)) == NODES, f"{NODES} pods of {name}")

    def pods(self, name: str) -> dict[int, Any]:
        """Those that have not ended, by index."""
        found = self.get("pods", "-l", f"job-name={name}")["items"]
        live = [pod for pod in found if pod["status"].get("phase") in ("Pending", "Running")]
        return {int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]): pod for pod in live}

    def status(self, name: str) -> Any:
        return self.get("job", name)["status"]

    def say(self, pod: Any, status: dict[str, object]) -> None:
        """In the kubelet's place."""
        patch = json.dumps({"status": status})
        self.kubectl("patch", "pod", pod["metadata"]["name"], "--subresource=status", "--type=merge", "-p", patch)

    def run(self, name: str) -> None:
        for index, pod in self.pods(name).items():
            where = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod["metadata"]["name"]}}
            binding = json.dumps({**where, "target": {"kind": "Node", "name": f"node{index}"}})
            path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/binding"
            if not pod["spec"].get("nodeName"):
                self.kubectl("create", f"--raw={path}", "-f", "-", given=binding)
            address = f"10.1.0.{index + 1}"
            self.say(pod, {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]})

    def end(self, name: str, index: int, code: int, *, disrupted: bool = False) -> Any:
        """The pod of this index ends with an exit code; gives it."""
        pod = until(lambda: self.pods(name).get(index), f"pod {index} of {name}")
        ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}
        of_container = {"name": "agentgym", "image": "none", "imageID": "", "ready": False, "restartCount": 0}
        status: dict[str, object] = {"phase": "Failed" if code else "Succeeded"}
        status["containerStatuses"] = [{**of_container, "state": {"terminated": ended}}]
        if disrupted:
            status["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]
        self.say(pod, status)
        return pod

    def replaced(self, name: str, text: str, failures: int, code: int, *, disrupted: bool = False) -> None:
        old = self.end(name, 1, code, disrupted=disrupted)["metadata"]["uid"]
        until(lambda: self.pods(name).get(1, {"metadata": {"uid": old}})["metadata"]["uid"] != old, f"after {text}")
        found = self.status(name).get("failed", 0)
        self.claim(f"{name}: {text}: its pod is replaced, {found} failure(s) counted", found == failures)

    def outcome(self, name: str, kind: str, reason: str, text: str) -> None:
        def seen() -> Any:
            for pod in self.get("pods", "-l", f"job-name={name}")["items"]:
                if "deletionTimestamp" in pod["metadata"]:  # a kubelet says when its containers have ended
                    gone = ("--grace-period=0", "--force", "--ignore-not-found")
                    self.kubectl("delete", "pod", pod["metadata"]["name"], *gone)
            return {one["type"]: one for one in self.status(name).get("conditions", []) if one["status"] == "True"}

        until(lambda: kind in seen(), f"{name} is {kind}")
        because = seen()[kind]["reason"]
        self.claim(f"{name}: {text}: the Job is {kind} ({because})", because == reason)
        until(lambda: not self.pods(name), f"the pods of {name} are gone")


def drill(one: Drill) -> None:
    for index in range(NODES):
        one.kubectl("create", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "Node"} | node(index)))
    one.launch("first", "--gpus", "8", "--claim", "shared", "--secret", "keys")
    pods = one.pods("first")
    names = [f"{pods[n]['spec']['hostname']}.{pods[n]['spec']['subdomain']}" for n in sorted(pods)]
    wanted = KubernetesLauncher(job="first", num_hosts=NODES).pods
    one.claim(f"first: the pods are called what the controller calls: {', '.join(names)}", names == wanted)
    one.run("first")

    def published() -> set[str]:
        slices = one.get("endpointslices", "-l", "kubernetes.io/service-name=first")["items"]
        return {point["hostname"] for part in slices for point in part["endpoints"] if point["conditions"]["ready"]}

    hosts = {name.partition(".")[0] for name in wanted}
    until(lambda: published() == hosts, "the Service's endpoints")
    one.claim(f"first: the Service gives each of them an address before it is ready: {sorted(hosts)}", True)
    one.replaced("first", "exit code 75, preempted and saved", 0, 75)
    one.replaced("first", "disrupted by the scheduler, exit code 137", 0, 137, disrupted=True)
    one.replaced("first", "exit code 1", 1, 1)
    one.end("first", 0, 0)
    one.outcome("first", "Complete", "SuccessPolicy", "the controller's pod ends with exit code 0")
    one.launch("second")
    one.end("second", 0, 2)
    one.outcome("second", "Failed", "PodFailurePolicy", "exit code 2, the user's mistake")
    one.launch("third", "--restarts", "0")
    one.end("third", 0, 1)
    one.outcome("third", "Failed", "BackoffLimitExceeded", "exit code 1 without restarts left")


def node(index: int) -> dict[str, object]:
    return {"metadata": {"name": f"node{index}"}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a new one")
    parser.add_argument("--binaries", type=Path, required=True, help="the folder of the control plane's programs")
    given = parser.parse_args()
    folder = given.folder.absolute()
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(RECIPE)
    with control_plane(folder, given.binaries.absolute()) as kubeconfig:
        one = Drill(folder=folder, kubeconfig=kubeconfig)
        print(" ".join(one.kubectl("version").split()))
        drill(one)
    return 0 if one.good else 1


if __name__ == "__main__":
    sys.exit(main())
