"""A cluster that the chart is installed on, and a kubelet's part for the pods it makes.

Their own commands, settings and environment are run as processes. What a container has for itself and a process here
has not is put in: ports, paths of volumes, and the pod's service account, whose token is bound to the pod as a
kubelet asks for it. Images are not run, since there are none here.
"""

import json
import os
import re
import stat
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tests.deploy.programs import tool
from tests.deploy.rendered import CHART, NAMESPACE
from tests.e2e.controlplane.api import ApiError, answers
from tests.e2e.controlplane.cluster import ControlPlane, _answers_blindly
from tests.e2e.controlplane.ports import LOOPBACK, HeldPort
from tests.e2e.controlplane.process import Process
from tests.e2e.controlplane.waiting import wait_until
from tests.e2e.relay import Relay
from tests.e2e.scene import GPUNODES, leaders
from tests.nodeagent.fakenvml import Node, card, uuid

Json = dict[str, Any]

BINARIES: Final = Path(sys.executable).parent
VERBS, PROBES, WEBHOOK, SCHEDULER, METRICS = 8580, 8581, 9443, 10259, 8582
AGENTS: Final = "tessera-agents"
NODES: Final = {"n1": "NVIDIA H100 80GB HBM3", "n2": "NVIDIA A100-SXM4-80GB"}
PLAIN: Final = {"containers": [{"name": "main", "image": "none"}]}
CONTROLLERS: Final = (
    "deployment-controller",
    "replicaset-controller",
    "daemonset-controller",
    "disruption-controller",
)
# In place of the Service, which nobody routes here, the webhooks' address.
RENDERER: Final = """#!{python}
import sys, yaml
made = [one for one in yaml.safe_load_all(sys.stdin) if one]
for one in made:
    for webhook in one.get("webhooks", []):
        webhook["clientConfig"]["url"] = "https://{webhooks}" + webhook["clientConfig"].pop("service")["path"]
yaml.safe_dump_all(made, sys.stdout)
"""


def model_of(node: str) -> list[Json]:
    """Return four cards, of names that no other node's have, as the driver tells them."""
    return [card(i) | {"name": NODES[node], "uuid": f"{uuid(i)[:-2]}{node}"} for i in range(4)]


@dataclass(frozen=True)
class Container:
    """One to be started, with what is here in place of its command, environment, volumes and ports.

    `home`: its pod's folder; `account`: a kubeconfig; `mounts`: folders by the path that the container knows.
    """

    pod: str
    node: str
    home: Path
    account: Path
    command: list[str]
    environment: dict[str, str]
    mounts: Mapping[str, Path]
    ports: Mapping[int, HeldPort]


@dataclass
class Kubelet:
    """Runs containers of pods. `drivers`: by node."""

    plane: ControlPlane
    folder: Path
    drivers: Mapping[str, Node]
    running: dict[str, list[Process]] = field(default_factory=dict)
    _ports: dict[str, dict[int, HeldPort]] = field(default_factory=dict)

    def extenders(self) -> list[str]:
        """Return the names of the extender's pods that run."""
        return [name for name in list(self.running) if name.startswith("tessera-extender")]

    def port(self, name: str, port: int) -> int:
        """Return what a container's port is here. Raises KeyError for a pod that was never run."""
        return self._ports[name][port].number

    def run(self, pod: Json) -> None:
        """Start the containers of a pod, and wait until each is ready."""
        name, spec = pod["metadata"]["name"], pod["spec"]
        home = self.folder / name
        home.mkdir()
        held = {port: self.plane._hold_port() for port in (VERBS, PROBES, WEBHOOK, SCHEDULER, METRICS)}
        self._ports[name] = held
        account = self._account(pod, home)
        for said in spec["containers"]:
            mounts = self._mounts(pod, said, home)
            command = [_moved(word, mounts) for word in (*said["command"], *said.get("args", []))]
            environment = {variable: _moved(value, mounts) for variable, value in resolved(pod, said).items()}
            made = Container(name, spec["nodeName"], home, account, command, environment, mounts, held)
            start = {"extender": self._extender, "kube-scheduler": self._scheduler, "agent": self._agent}[
                said["name"]
            ]
            self.running.setdefault(name, []).append(start(made))

    def stop(self, name: str) -> None:
        """End the containers of a pod as a kubelet does, and let the pod go."""
        for process in reversed(self.running.pop(name)):
            process.stop()

    def _account(self, pod: Json, home: Path) -> Path:
        """Write a token that is bound to the pod, alone and as a kubeconfig; return that one's path."""
        meta, account = pod["metadata"], pod["spec"]["serviceAccountName"]
        bound = (
            "--bound-object-kind=Pod",
            f"--bound-object-name={meta['name']}",
            f"--bound-object-uid={meta['uid']}",
        )
        token = self.plane.kubectl("create", "token", account, "-n", meta["namespace"], *bound).strip()
        (home / "token").write_text(token)
        return self.plane.write_kubeconfig(meta["name"], token)

    def _mounts(self, pod: Json, container: Json, home: Path) -> dict[str, Path]:
        """Make the container's volumes; return where each is, by the path that the container knows."""
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
        named = {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts", [])}
        mounts = {path: home / container["name"] / name for path, name in named.items()}
        for path, folder in mounts.items():
            folder.mkdir(parents=True)
            for file, content in self._files(pod["metadata"]["namespace"], volumes[named[path]]).items():
                (folder / file).write_text(_moved(content, mounts))
        return mounts

    def _files(self, namespace: str, volume: Json) -> dict[str, str]:
        """Return what is in a volume from the start, by name."""
        path = f"/api/v1/namespaces/{namespace}"
        if source := volume.get("configMap"):
            return dict(json.loads(self.plane.request("GET", f"{path}/configmaps/{source['name']}"))["data"])
        if source := volume.get("secret"):
            data = json.loads(self.plane.request("GET", f"{path}/secrets/{source['secretName']}"))["data"]
            return {name: b64decode(content).decode() for name, content in data.items()}
        return {}

    def _extender(self, made: Container) -> Process:
        made.environment.update(
            TESSERA_KUBECONFIG=str(made.account),
            TESSERA_HOST=LOOPBACK,
            TESSERA_PORT=str(made.ports[VERBS].number),
            TESSERA_PROBE_PORT=str(made.ports[PROBES].number),
            TESSERA_WEBHOOK_PORT=str(made.ports[WEBHOOK].number),
            TESSERA_WEBHOOK_NAMES=LOOPBACK,
            TMPDIR=str(made.mounts["/tmp"]),
        )
        return self._start(made, "extender", BINARIES, f"http://{made.ports[PROBES]}")

    def _scheduler(self, made: Container) -> Process:
        path, account = made.mounts["/etc/tessera"] / "scheduler.yaml", made.account
        said = yaml.safe_load(path.read_text())
        (extender,) = said["extenders"]
        extender["urlPrefix"] = extender["urlPrefix"].replace(f"127.0.0.1:{VERBS}", str(made.ports[VERBS]))
        path.write_text(yaml.safe_dump(said | {"clientConnection": {"kubeconfig": str(account)}}))
        made.command.extend([f"--authentication-kubeconfig={account}", f"--authorization-kubeconfig={account}"])
        made.command.extend([f"--secure-port={made.ports[SCHEDULER].number}", f"--bind-address={LOOPBACK}"])
        made.command.extend([f"--cert-dir={made.mounts['/tmp']}"])
        folder = self.plane.programs.kube_scheduler.parent
        return self._start(made, "scheduler", folder, f"https://{made.ports[SCHEDULER]}")

    def _agent(self, made: Container) -> Process:
        (made.home / "proc").mkdir()
        made.environment.update(
            TESSERA_AGENT_SERVER=self.plane.server,
            TESSERA_AGENT_TOKEN_FILE=str(made.home / "token"),
            TESSERA_AGENT_CA_FILE=str(self.plane.folder / "apiserver" / "apiserver.crt"),
            TESSERA_AGENT_HOST=LOOPBACK,
            TESSERA_AGENT_PORT=str(made.ports[METRICS].number),
            TESSERA_AGENT_PROC=str(made.home / "proc"),
            LD_LIBRARY_PATH=str(self.drivers[made.node].directory),
        )
        return self._start(made, "agent", BINARIES, f"http://{made.ports[METRICS]}")

    def _start(self, made: Container, name: str, folder: Path, url: str) -> Process:
        """Run a program of `folder` with the container's environment besides ours."""
        said = [f"{variable}={value}" for variable, value in made.environment.items()]
        command = ["env", *said, str(folder / made.command[0]), *made.command[1:]]
        asked = _answers_blindly if url.startswith("https") else answers
        return self.plane.start(f"{made.pod}-{name}", command, url, lambda: asked(f"{url}/readyz"))


def resolved(pod: Json, container: Json) -> dict[str, str]:
    """Return a container's environment as a kubelet makes it."""
    fields = {
        "metadata.name": pod["metadata"]["name"],
        "metadata.namespace": pod["metadata"]["namespace"],
        "spec.nodeName": pod["spec"].get("nodeName", ""),
    }
    return {
        v["name"]: fields[v["valueFrom"]["fieldRef"]["fieldPath"]] if "valueFrom" in v else v.get("value", "")
        for v in container.get("env", [])
    }


def _moved(text: str, mounts: Mapping[str, Path]) -> str:
    """Return a text with the paths of volumes in it as those are here."""
    paths = "|".join(re.escape(path) for path in sorted(mounts, key=len, reverse=True))
    return re.sub(paths, lambda found: str(mounts[found[0]]), text) if paths else text


@dataclass
class Stage:
    """A control plane with two GPU nodes, and helm to install with. `verbs`: the leading extender's Service."""

    plane: ControlPlane
    kubelet: Kubelet
    renderer: Path
    verbs: Relay

    def helm(self, *args: str) -> str:
        """Run helm as the administrator; return what it printed."""
        command = [str(tool("helm")), *args, "--kubeconfig", str(self.plane.kubeconfig()), "-n", NAMESPACE]
        home = {f"HELM_{name}_HOME": str(self.plane.folder / "helm") for name in ("CACHE", "CONFIG", "DATA")}
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | home, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def chart(self, verb: str, *flags: str) -> str:
        """Install or upgrade the release."""
        return self.helm(verb, "tessera", str(CHART), "--post-renderer", str(self.renderer), *flags)

    def run(self, replicas: int = 1) -> None:
        """Run what the chart made, once it is bound: both agents, and so many of the extender's two replicas."""
        for namespace, count in ((AGENTS, 2), (NAMESPACE, replicas)):
            wait_until(lambda: len(self.pods(namespace)) == 2, f"two pods are bound in {namespace}", 60)  # noqa: B023
            for pod in self.pods(namespace)[:count]:
                self.kubelet.run(pod)

    def items(self, path: str) -> list[Json]:
        """Return the objects of a list."""
        found: list[Json] = json.loads(self.plane.request("GET", path))["items"]
        return found

    def pods(self, namespace: str) -> list[Json]:
        """Return the pods of a namespace that are bound and not about to go."""
        pods = self.items(f"/api/v1/namespaces/{namespace}/pods")
        return [p for p in pods if "nodeName" in p["spec"] and "deletionTimestamp" not in p["metadata"]]

    def gpus(self, node: str) -> list[Json]:
        """Return a node's cards as its agent has told them."""
        found = json.loads(self.plane.request("GET", f"{GPUNODES}/{node}"))
        return list(found["status"]["gpus"])

    def pod(self, name: str) -> Json:
        """Return a pod of the default namespace."""
        found: Json = json.loads(self.plane.request("GET", f"/api/v1/namespaces/default/pods/{name}"))
        return found

    def mutates(self) -> bool:
        """Say whether the webhook completes a pod that asks for GPUs."""
        asks = {"metadata": {"name": "probe", "annotations": {"tessera.gpu/memory": "1Gi"}}}
        try:
            made = self.plane.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", asks | {"spec": PLAIN})
        except ApiError:
            return False
        return bool(json.loads(made)["spec"].get("runtimeClassName") == "nvidia")

    def bound(self, name: str) -> bool:
        """Say whether a pod of the default namespace has a node and a record."""
        pod = self.pod(name)
        return "nodeName" in pod["spec"] and "tessera.gpu/assignment" in pod["metadata"].get("annotations", {})


@contextmanager
def staged(folder: Path) -> Iterator[Stage]:
    """Make a cluster: nodes labelled by NVIDIA's discovery, with the runtime class; nothing of Tessera."""
    drivers = {}
    for node in NODES:
        (folder / node).mkdir()
        drivers[node] = Node(folder / node)
        drivers[node].write(*model_of(node))
    pods = folder / "pods"
    pods.mkdir()
    with ControlPlane() as plane:
        kubelet = Kubelet(plane, pods, drivers)
        with (
            Relay(lambda: kubelet.port(kubelet.extenders()[0], WEBHOOK)) as webhooks,
            Relay(lambda: kubelet.port(leaders(plane)[0], VERBS)) as verbs,
        ):
            amounts = {"cpu": "64", "memory": "512Gi", "pods": "250"}
            for node in drivers:
                made: Json = {"metadata": {"name": node, "labels": {"nvidia.com/gpu.present": "true"}}}
                made["status"] = {"capacity": amounts, "allocatable": amounts}
                plane.request("POST", "/api/v1/nodes", made)
            runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
            plane.request("POST", "/apis/node.k8s.io/v1/runtimeclasses", runtime | {"handler": "nvidia"})
            plane.start_controllers(*CONTROLLERS)
            renderer = folder / "renderer"
            renderer.write_text(RENDERER.format(python=sys.executable, webhooks=webhooks))
            renderer.chmod(renderer.stat().st_mode | stat.S_IXUSR)
            yield Stage(plane, kubelet, renderer, verbs)
