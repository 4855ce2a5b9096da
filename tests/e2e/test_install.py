"""The chart on a real control plane: install with defaults, upgrade, uninstall with pods running.

There is no kubelet and no registry here: `installed.Kubelet` runs the containers' own commands. The images themselves
were built by nobody.
"""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.deploy.rendered import NAMESPACE
from tests.e2e.controlplane.cluster import KubectlError, audited
from tests.e2e.controlplane.waiting import wait_until
from tests.e2e.installed import PLAIN, Stage, model_of, staged
from tests.e2e.scene import DEPLOY, GPUNODES

pytestmark = pytest.mark.e2e

Json = dict[str, Any]
EXAMPLES: Final = ("trainer", "inference", "notebook", "data-parallel", "benchmark", "pipeline")
KEPT: Final = (*EXAMPLES, "heir")
UNWELL: Final = {"field.230": 2}  # the driver says that a reboot is needed


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Two GPU nodes and the cluster's own scheduler; nothing of Tessera yet."""
    with staged(tmp_path_factory.mktemp("install")) as stage:
        path = stage.plane.folder / "cluster.yaml"
        path.write_text("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n")
        stage.plane.start_scheduler(path, name="cluster-scheduler")
        yield stage


@pytest.fixture(scope="module")
def release(stage: Stage) -> str:
    """Install the chart with its defaults and run what it made; return what helm said."""
    said = stage.chart("install", "--create-namespace")
    stage.plane.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    stage.run()
    return said


def test_install_leaves_what_the_notes_say(stage: Stage, release: str) -> None:
    """Every command of the notes runs, and shows what they promise; the pods pass the restricted standard."""
    commands = [line.split() for line in release.splitlines() if line.startswith("     kubectl")]
    assert [words[1] for words in commands] == ["-n", "-n", "get", "label", "apply"]
    cards = stage.plane.kubectl("get", "gpunodes")
    assert [line.split()[1] for line in cards.splitlines()[1:]] == ["4", "4"], cards


def test_replicas_avoid_each_other(stage: Stage, release: str) -> None:
    """One that comes when the other is known to run goes to the other node."""
    (running,) = stage.kubelet.extenders()
    (idle,) = {pod["metadata"]["name"] for pod in stage.pods(NAMESPACE)} - {running}
    stage.plane.kubectl("delete", "pod", idle, "-n", NAMESPACE, "--grace-period=0", "--force")
    wait_until(lambda: {pod["metadata"]["name"] for pod in stage.pods(NAMESPACE)} - {running, idle}, "another comes")
    assert {pod["spec"]["nodeName"] for pod in stage.pods(NAMESPACE)} == {"n1", "n2"}


def test_quick_start_places_every_example(stage: Stage, release: str) -> None:
    """`kubectl apply` of the examples, as they are: the webhook completes them, and each gets its cards."""
    wait_until(stage.mutates, "the webhook answers")
    stage.plane.kubectl("apply", "-f", str(DEPLOY / "examples/pods.yaml"))
    wait_until(lambda: all(stage.bound(name) for name in EXAMPLES), "every example is bound")
    assert {stage.pod(name)["spec"]["schedulerName"] for name in EXAMPLES} == {"tessera-scheduler"}
    assert {stage.pod(name)["spec"]["runtimeClassName"] for name in EXAMPLES} == {"nvidia"}
    assert stage.pod("benchmark")["spec"]["nodeName"] == "n2", "the node with the A100s"


def test_a_pod_without_gpus_is_none_of_its_business(stage: Stage, release: str) -> None:
    """It keeps the cluster's scheduler, and is bound."""
    plain = {"metadata": {"name": "plain"}, "spec": PLAIN}
    stage.plane.request("POST", "/api/v1/namespaces/default/pods", plain)
    wait_until(lambda: "nodeName" in stage.pod("plain")["spec"], "it is bound")
    assert stage.pod("plain")["spec"]["schedulerName"] == "default-scheduler"


def test_a_pod_that_waits_is_woken(stage: Stage, release: str) -> None:
    """It asks for a card that is not well, and gets it once it is, of which no event of Kubernetes tells."""
    cards = model_of("n1")
    stage.kubelet.drivers["n1"].write(cards[0] | UNWELL, *cards[1:])
    wait_until(lambda: not all(gpu["healthy"] for gpu in stage.gpus("n1")), "the agent tells of it")
    notes = {"tessera.gpu/memory": "1Gi", "tessera.gpu/uuid": str(cards[0]["uuid"])}
    heir = {"metadata": {"name": "heir", "annotations": notes}, "spec": PLAIN}
    stage.plane.request("POST", "/api/v1/namespaces/default/pods", heir)
    wait_until(lambda: stage.pod("heir")["status"].get("conditions"), "it waits")
    stage.kubelet.drivers["n1"].write(*cards)
    wait_until(lambda: stage.bound("heir"), "it is bound")


def test_nothing_was_refused(stage: Stage, release: str) -> None:
    """The rights of each component are enough; that they are no more is test_rights.py's."""
    lines = audited(stage.plane.audit)
    assert {line["user"]["username"].rpartition(":")[2] for line in lines} == {"tessera-extender", "tessera-agent"}
    assert [line for line in lines if line["responseStatus"]["code"] in (401, 403)] == []


def test_upgrade_changes_a_setting_and_no_pod(stage: Stage, release: str) -> None:
    """Compute may be promised 1.3 times: what did not fit does now, and every record stays as it was."""
    before = {name: stage.pod(name)["metadata"]["annotations"]["tessera.gpu/assignment"] for name in KEPT}
    old = {pod["metadata"]["name"] for pod in stage.pods(NAMESPACE)}
    stage.chart("upgrade", "--set", "extender.settings.overcommit=1.3")
    (running,) = (name for name in stage.kubelet.running if name in old)
    wait_until(lambda: {p["metadata"]["name"] for p in stage.pods(NAMESPACE)} - old, "a new replica is bound")
    stage.kubelet.stop(running)
    new = next(pod for pod in stage.pods(NAMESPACE) if pod["metadata"]["name"] not in old)
    stage.kubelet.run(new)
    for name in old:
        stage.plane.kubectl(
            "delete", "pod", name, "-n", NAMESPACE, "--grace-period=0", "--force", "--ignore-not-found"
        )
    wait_until(lambda: _utilization(stage) == {"520"}, "130 % of each card are advertised")
    wait_until(stage.mutates, "the webhook answers")
    assert before == {name: stage.pod(name)["metadata"]["annotations"]["tessera.gpu/assignment"] for name in KEPT}
    late: Json = {"metadata": {"name": "late", "annotations": {"tessera.gpu/memory": "1Gi"}}}
    late["spec"] = PLAIN
    stage.plane.request("POST", "/api/v1/namespaces/default/pods", late)
    wait_until(lambda: stage.bound("late"), "a pod is bound after the upgrade")


def _utilization(stage: Stage) -> set[str]:
    nodes = stage.items("/api/v1/nodes")
    return {node["status"]["allocatable"].get("nvidia.com/gpu-utilization", "") for node in nodes}


def test_uninstall_leaves_running_pods_and_what_the_docs_say(stage: Stage, release: str) -> None:
    """Pods keep their nodes and records; reports and advertised totals stay; no webhook and no policy is left."""
    stage.helm("uninstall", "tessera")
    for name in list(stage.kubelet.running):
        stage.kubelet.stop(name)
    assert all(stage.bound(name) for name in (*KEPT, "late"))
    assert len(stage.items(GPUNODES)) == 2, "the definition is kept, and the reports"
    assert _utilization(stage) == {"520"}, "nobody lowers what nodes have under running pods"
    left = [
        f"{kind}/{made['metadata']['name']}"
        for kind in (
            "mutatingwebhookconfigurations",
            "validatingwebhookconfigurations",
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
        )
        for made in stage.items(f"/apis/admissionregistration.k8s.io/v1/{kind}")
        if "tessera" in made["metadata"]["name"]
    ]
    assert left == []
    kept = {
        kind: [one["metadata"]["name"] for one in stage.items(f"{group}/namespaces/{NAMESPACE}/{kind}")]
        for group, kind in (("/api/v1", "secrets"), ("/apis/coordination.k8s.io/v1", "leases"))
    }
    assert kept == {"secrets": ["tessera-webhook"], "leases": ["tessera-scheduler"]}
    with pytest.raises(KubectlError, match="not found"):
        stage.plane.kubectl("get", "deployment", "tessera-extender", "-n", NAMESPACE)
    plain = {"metadata": {"name": "after"}, "spec": PLAIN}
    stage.plane.request("POST", "/api/v1/namespaces/default/pods", plain)
