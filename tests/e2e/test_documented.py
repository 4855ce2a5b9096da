"""Every kubectl and helm command of README and docs/, word for word, in a shell on a real control plane.

tests/deploy/test_documents.py compares COMMANDS with the pages. What the commands need is put in: names for NODE, POD
and the like, the extender's address for that of a forwarded port, and where the webhooks are, since nobody routes
Services here.
"""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
import trustme
import yaml

from tests.deploy.programs import tool
from tests.deploy.rendered import NAMESPACE
from tests.e2e import bench_memory, bench_throughput
from tests.e2e.controlplane.api import STRATEGIC, ApiError
from tests.e2e.controlplane.waiting import wait_until
from tests.e2e.installed import AGENTS, PLAIN, PROBES, Stage, model_of, staged
from tests.e2e.scene import ROOT
from tests.e2e.test_install import EXAMPLES, UNWELL

pytestmark = pytest.mark.e2e

Json = dict[str, Any]

# A command as the pages have it, and a pattern of what it prints. Chapters and tests are one story, in this order.
INSTALL: Final = {
    "helm install tessera deploy/chart --namespace tessera-system --create-namespace"
    " --set extender.image.repository=REGISTRY/tessera-extender"
    " --set agent.image.repository=REGISTRY/tessera-agent": "is in the namespace tessera-system",
    "kubectl label node NODE nvidia.com/gpu.present=true": "node/n1 labeled",
    "kubectl label namespace tessera-system pod-security.kubernetes.io/enforce=restricted": "labeled",
    "kubectl -n tessera-system rollout status deployment/tessera-extender": "successfully rolled out",
    "kubectl -n tessera-agents rollout status daemonset/tessera-agent": "successfully rolled out",
    "kubectl apply -f deploy/examples/pods.yaml": "pod/trainer created",
}
# With the examples bound, `waits` that fits nowhere, a card of n1 that is not well, and a pod beyond its grant.
LOOK: Final = {
    "kubectl get gpunodes": r"n1 +4 +NVIDIA H100.* 3/4 +True +\w.*\n.*n2 +4 +NVIDIA A100",
    "kubectl get pods -o wide": r"trainer .* n[12] ",
    "kubectl get pods -A --field-selector spec.nodeName=NODE": "tessera-agents +tessera-agent-",
    "kubectl get events": "FailedScheduling .*pod/waits",
    "kubectl get events -A --field-selector reason=GPUMemoryOverGrant": "pod/trainer",
    "kubectl get node NODE -o jsonpath='{.status.allocatable}'": "nvidia.com/gpu-memory",
    "kubectl get lease -n tessera-agents": "n1 .*\nn2 ",
    "kubectl -n tessera-agents get lease NODE": "n1 ",
    "kubectl -n tessera-agents get pods -o wide": "tessera-agent-.* n1 ",
    "kubectl -n tessera-agents get pods -o wide --field-selector spec.nodeName=NODE": "tessera-agent-.* n1 ",
    "kubectl -n tessera-system get pods": "tessera-extender-",
    "kubectl -n tessera-system describe deployment/tessera-extender": "2 desired",
    "kubectl describe node": r"nvidia.com/gpu-memory +\d+Gi",
    "kubectl describe gpunode": r"(?s)Promised.*Used",
    "kubectl describe gpunode NODE": r"Reason: +\w+ \w+",
    "kubectl describe pod": "tessera.gpu/assignment:\n",
    "kubectl describe pod POD": "no card|cannot hold",
    "kubectl tessera top": "n1 .*\n.*n2 ",
    "kubectl tessera pods -A": "default .*trainer",
    "kubectl tessera explain POD": "None of 2 nodes with cards takes it now",
    "kubectl tessera explain waits": "It asks for main: 90Gi of memory on 1 card",
    "kubectl tessera explain trainer --extender http://127.0.0.1:8581": "GPU-.*: 8Gi and 70%",
    "kubectl tessera doctor": "cards +warn +1 unhealthy: .* on n1",
}
# They end with 1, and the sentence is the one that is promised.
REFUSED: Final = {
    "kubectl apply -f pod.yaml": "tessera.gpu/memory is '4096', which is below 1Mi",
    "kubectl apply --dry-run=server -f pod.yaml": "tessera.gpu/memory is '4096', which is below 1Mi",
}
# No kubelet runs here: they find the pod and its container, and then the node that has no address.
TO_THE_KUBELET: Final = dict.fromkeys(
    (
        "kubectl -n tessera-system logs deployment/tessera-extender -c extender",
        "kubectl -n tessera-system logs deployment/tessera-extender -c extender --previous",
        "kubectl -n tessera-agents logs AGENT",
        "kubectl -n tessera-system port-forward deploy/tessera-extender 8581",
    ),
    "no preferred addresses found",
)
UPGRADE: Final = {
    "helm upgrade tessera deploy/chart --namespace tessera-system --reset-then-reuse-values": "has been upgraded",
    "helm rollback tessera --namespace tessera-system": "Rollback was a success",
}
REMOVE: Final = {
    "kubectl drain NODE --ignore-daemonsets --delete-emptydir-data": "node/n1 drained",
    "kubectl label node NODE nvidia.com/gpu.present-": "node/n1 unlabeled",
    "kubectl delete gpunode NODE": '"n1" deleted',
    "helm uninstall tessera --namespace tessera-system": 'release "tessera" uninstalled',
    "kubectl delete namespace tessera-system": '"tessera-system" deleted',
    "kubectl delete crd gpunodes.tessera.gpu": '"gpunodes.tessera.gpu" deleted',
    "kubectl patch node NODE --subresource=status --type=json -p '[\n"
    '  {"op": "remove", "path": "/status/capacity/nvidia.com~1gpu-memory"},\n'
    '  {"op": "remove", "path": "/status/capacity/nvidia.com~1gpu-utilization"},\n'
    '  {"op": "remove", "path": "/status/capacity/tessera.gpu~1share"}]\'': "patched",
}
EXISTING: Final = {
    "kubectl create namespace tessera-system": "created",
    "kubectl -n tessera-system create secret generic tessera-tls --from-file=tls.crt --from-file=tls.key"
    " --from-file=ca.crt": "secret/tessera-tls created",
    "helm install tessera deploy/chart --namespace tessera-system"
    " --set extender.image.repository=REGISTRY/tessera-extender --set agent.image.repository=REGISTRY/tessera-agent"
    " --set layout=existing-scheduler --set extender.tls.secretName=tessera-tls": "config-tls.yaml",
    "kubectl -n tessera-system get lease tessera-extender -o yaml": "holderIdentity: tessera-extender-",
}
WITHOUT_HELM: Final = {
    "kubectl apply --server-side -f deploy/manifests/install.yaml": "tessera-extender serverside-applied",
}
CHAPTERS: Final = (INSTALL, LOOK, REFUSED, TO_THE_KUBELET, UPGRADE, REMOVE, EXISTING, WITHOUT_HELM)
COMMANDS: Final = frozenset(command for chapter in CHAPTERS for command in chapter)

HELM: Final = """#!/bin/sh
case "$1" in install|upgrade) set -- "$@" --post-renderer "{renderer}";; esac
exec "{helm}" "$@"
"""


class Shell:
    """A user's shell in a checkout: kubectl and its plugin, helm, the cluster's credentials, and names to fill in."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.folder = folder
        self.names = {"REGISTRY": "registry.example", "NODE": "n1", "POD": "waits"}
        (folder / "deploy").symlink_to(ROOT / "deploy")
        helm = folder / "helm"
        helm.write_text(HELM.format(renderer=stage.renderer, helm=tool("helm")))
        helm.chmod(0o755)
        path = (folder, stage.plane.programs.kubectl.parent, Path(sys.executable).parent, os.environ["PATH"])
        self.environ = os.environ | {
            "PATH": os.pathsep.join(map(str, path)),
            "KUBECONFIG": str(stage.plane.kubeconfig()),
            "KUBECACHEDIR": str(folder / "cache"),
            **{f"HELM_{name}_HOME": str(folder / "helm-home") for name in ("CACHE", "CONFIG", "DATA")},
        }

    def say(self, command: str, *, status: int = 0) -> str:
        """Run a command; return what it printed, once it ended with this status."""
        for name, value in self.names.items():
            command = re.sub(rf"(?<![\w-]){re.escape(name)}\b", value, command)
        done = subprocess.run(
            command,
            shell=True,
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == status, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def tell(self, chapter: Mapping[str, str], *commands: str) -> None:
        """Run a chapter, or some commands of it, in order; each prints what it shall."""
        for command in commands or chapter:
            said = self.say(command)
            assert re.search(chapter[command], said), f"{command}\n{said}"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Two GPU nodes, of which one has no label yet, and the cluster's own scheduler; nothing of Tessera."""
    with staged(tmp_path_factory.mktemp("documented")) as stage:
        stage.plane.kubectl("label", "node", "n1", "nvidia.com/gpu.present-")
        stage.plane.start_controllers("namespace-controller", name="namespaces")
        path = stage.plane.folder / "cluster.yaml"
        kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
        path.write_text(yaml.safe_dump(kind))
        stage.plane.start_scheduler(path, name="cluster-scheduler")
        yield stage


@pytest.fixture(scope="module")
def shell(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Return a shell, with a kubelet's answers beside it for as long as there are tests."""
    with hollow(stage):
        yield Shell(stage, tmp_path_factory.mktemp("checkout"))


@contextmanager
def hollow(stage: Stage) -> Iterator[None]:
    """Call every bound pod ready, and let go those that shall end, as kubelets do."""
    over = threading.Event()

    def answer() -> None:
        while not over.wait(0.3):
            with suppress(ApiError, OSError):  # what is gone meanwhile, and what comes at the next look
                for pod in stage.items("/api/v1/pods"):
                    if "nodeName" in pod["spec"]:
                        _answer(stage, pod)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _answer(stage: Stage, pod: Json) -> None:
    meta = pod["metadata"]
    path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    if "deletionTimestamp" in meta:
        if meta["name"] in stage.kubelet.running:
            stage.kubelet.stop(meta["name"])
        stage.plane.request("DELETE", f"{path}?gracePeriodSeconds=0")
    elif pod["status"]["phase"] == "Pending":
        stage.plane.request("PATCH", f"{path}/status", ready, content_type=STRATEGIC)


@pytest.fixture(scope="module")
def release(stage: Stage, shell: Shell) -> Stage:
    """Install with Helm and run what was made: two agents and one of the replicas, which places the examples."""
    helm, label, guard, extender, agents, examples = INSTALL
    shell.tell(INSTALL, helm, label, guard)
    stage.run()
    shell.tell(INSTALL, extender, agents)
    wait_until(stage.mutates, "the webhook answers")
    shell.tell(INSTALL, examples)
    wait_until(lambda: all(stage.bound(name) for name in EXAMPLES), "every example is bound")
    (running,) = stage.kubelet.extenders()
    url = f"http://127.0.0.1:{stage.kubelet.port(running, PROBES)}"
    shell.environ["TESSERA_EXTENDER"] = url
    shell.names |= {"http://127.0.0.1:8581": url, "AGENT": stage.pods(AGENTS)[0]["metadata"]["name"]}
    return stage


@pytest.fixture(scope="module")
def trouble(release: Stage, shell: Shell) -> None:
    """A pod that fits nowhere, a card that is not well, and an agent's event."""
    asks = {"metadata": {"name": "waits", "annotations": {"tessera.gpu/memory": "90Gi"}}, "spec": PLAIN}
    release.plane.request("POST", "/api/v1/namespaces/default/pods", asks)
    wait_until(lambda: release.pod("waits")["status"].get("conditions"), "it waits")
    cards = model_of("n1")
    release.kubelet.drivers["n1"].write(*cards[:3], cards[3] | UNWELL)
    wait_until(lambda: not all(gpu["healthy"] for gpu in release.gpus("n1")), "the agent tells of it")
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "trainer"}
    event = {"metadata": {"name": "trainer.1"}, "involvedObject": about, "reason": "GPUMemoryOverGrant"}
    release.plane.request("POST", "/api/v1/namespaces/default/events", event | {"message": "It uses too much."})


@pytest.mark.parametrize("command", LOOK)
def test_what_is_looked_at_shows_what_is_promised(trouble: None, shell: Shell, command: str) -> None:
    """At once, or when the next report has come."""
    said = ""

    def shown() -> bool:
        nonlocal said
        said = shell.say(command)
        return re.search(LOOK[command], said) is not None

    try:
        wait_until(shown, command, 15)
    except TimeoutError:
        pytest.fail(f"{command}\n{said}")


@pytest.mark.parametrize("command", REFUSED)
def test_a_bad_request_is_refused_with_its_sentence(release: Stage, shell: Shell, command: str) -> None:
    """When it is created, and in a dry run."""
    asks = {"metadata": {"name": "bad", "annotations": {"tessera.gpu/memory": "4096"}}, "spec": PLAIN}
    (shell.folder / "pod.yaml").write_text(json.dumps({"apiVersion": "v1", "kind": "Pod"} | asks))
    assert REFUSED[command] in shell.say(command, status=1)


@pytest.mark.parametrize("command", TO_THE_KUBELET)
def test_what_a_kubelet_answers_is_asked_of_the_right_container(release: Stage, shell: Shell, command: str) -> None:
    """Deployment, pod and container are found; of a container that is not there kubectl says so."""
    assert TO_THE_KUBELET[command] in shell.say(command, status=1)


def test_upgrade_and_back(release: Stage, shell: Shell) -> None:
    """Both change nothing here but the release's number."""
    shell.tell(UPGRADE)
    assert "\n3 " in shell.say("helm history tessera --namespace tessera-system").replace("\t", " ")


def test_out_of_service_and_uninstalled(release: Stage, shell: Shell) -> None:
    """A node is taken out for good, then all of it; what is documented to stay is taken away as documented."""
    drain, unlabel, forget, *uninstall = REMOVE
    release.plane.kubectl("delete", "pod", "--all", "--grace-period=0", "--force")
    shell.tell(REMOVE, drain, unlabel)
    wait_until(lambda: len(release.pods(AGENTS)) == 1, "its agent is gone")
    shell.tell(REMOVE, forget)
    shell.names["NODE"] = "n2"  # n1 has lost its totals with its GPUNode, if a replica was there to take them
    shell.tell(REMOVE, *uninstall)
    gone(release, AGENTS)
    left = json.loads(release.plane.request("GET", "/api/v1/nodes/n2"))["status"]["capacity"]
    assert sorted(left) == ["cpu", "memory", "pods"]


def gone(stage: Stage, namespace: str) -> None:
    """Wait until a namespace is gone with all that was in it, for which Helm does not wait."""
    names = (item["metadata"]["name"] for item in stage.items("/api/v1/namespaces"))
    wait_until(lambda: namespace not in list(names), f"{namespace} is gone")


def test_existing_scheduler(stage: Stage, shell: Shell) -> None:
    """The other layout with certificates of ours, and the Lease of its leader."""
    *install, lease = EXISTING
    authority = trustme.CA()
    certificate = authority.issue_cert("tessera-extender.tessera-system.svc")
    authority.cert_pem.write_to_path(shell.folder / "ca.crt")
    certificate.private_key_pem.write_to_path(shell.folder / "tls.key")
    certificate.cert_chain_pems[0].write_to_path(shell.folder / "tls.crt")
    shell.tell(EXISTING, *install)
    wait_until(lambda: stage.pods(NAMESPACE), "a replica is bound")
    stage.kubelet.run(stage.pods(NAMESPACE)[0])
    wait_until(lambda: stage.items(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"), "a Lease")
    shell.tell(EXISTING, lease)


def test_without_helm(stage: Stage, shell: Shell) -> None:
    """The manifest, into a cluster that has nothing of Tessera any more."""
    shell.tell(REMOVE, *list(REMOVE)[3:6])
    gone(stage, AGENTS)
    shell.tell(WITHOUT_HELM)


def test_benchmarks_at_their_smallest(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m tests.e2e.bench_throughput` and `bench_memory`, which take minutes at their own size."""
    monkeypatch.setattr(bench_memory, "SETTLE_SECONDS", 0)
    monkeypatch.setattr(sys, "argv", ["", "--nodes", "20", "--pods", "50"])
    bench_memory.main()
    assert re.search(r"ready after .* s, .*\n0 s later .*it knows of 50 pods", capsys.readouterr().out)
    monkeypatch.setattr(sys, "argv", ["", "--nodes", "20", "--pods", "20", "--rounds", "1"])
    bench_throughput.main()
    assert re.search(r"median .* pods/s with the extender, .* without, ratio \d", capsys.readouterr().out)
