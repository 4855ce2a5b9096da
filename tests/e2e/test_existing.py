"""The chart's other layout on a real control plane: the cluster's own kube-scheduler asks, over mTLS, who leads.

As docs/install.md has it: a Secret, the chart, and the scheduler's shipped configuration.
"""

from collections.abc import Iterator

import pytest
import trustme

from tests.deploy.rendered import NAMESPACE
from tests.e2e.controlplane.cluster import audited
from tests.e2e.controlplane.waiting import wait_until
from tests.e2e.installed import PLAIN, Stage, staged
from tests.e2e.scene import DEPLOY, leaders
from tests.e2e.test_chart import EXISTING
from tests.e2e.test_install import EXAMPLES
from tests.e2e.test_tls import CLIENT, SERVER, Secret, scheduler

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Install the chart beside a kube-scheduler that is told of the extender from its start; run both replicas."""
    folder, ca = tmp_path_factory.mktemp("existing"), trustme.CA()
    server, client = Secret(folder / "server", ca), Secret(folder / "client", ca)
    server.write(SERVER, SERVER)
    client.write("scheduler.example", CLIENT)
    with staged(folder) as stage:
        stage.plane.start_scheduler(scheduler(stage.plane, stage.verbs, client))
        stage.plane.kubectl("create", "namespace", NAMESPACE)
        stage.plane.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
        files = [f"--from-file={server.path(name)}" for name in ("tls.crt", "tls.key", "ca.crt")]
        stage.plane.kubectl("-n", NAMESPACE, "create", "secret", "generic", "tessera-tls", *files)
        stage.chart("install", *EXISTING)
        stage.run(replicas=2)
        yield stage


def test_the_clusters_scheduler_places_every_example(stage: Stage) -> None:
    """One replica leads and carries the label; pods keep the cluster's scheduler, and each gets its cards."""
    wait_until(lambda: len(leaders(stage.plane)) == 1, "one replica leads")
    wait_until(stage.mutates, "the webhook answers")
    stage.plane.kubectl("apply", "-f", str(DEPLOY / "examples/pods.yaml"))
    wait_until(lambda: all(stage.bound(name) for name in EXAMPLES), "every example is bound")
    assert {stage.pod(name)["spec"]["schedulerName"] for name in EXAMPLES} == {"default-scheduler"}


def test_the_other_replica_takes_over(stage: Stage) -> None:
    """The one that led is stopped, as in a roll-out; the next pod is bound by the other."""
    (old,) = leaders(stage.plane)
    stage.kubelet.stop(old)
    wait_until(lambda: set(leaders(stage.plane)) - {old}, "the other leads")
    late = {"metadata": {"name": "late", "annotations": {"tessera.gpu/memory": "1Gi"}}, "spec": PLAIN}
    stage.plane.request("POST", "/api/v1/namespaces/default/pods", late)
    wait_until(lambda: stage.bound("late"), "a pod is bound by the other")


def test_nothing_was_refused(stage: Stage) -> None:
    """The rights that this layout gives are enough."""
    lines = audited(stage.plane.audit)
    assert [line for line in lines if line["responseStatus"]["code"] in (401, 403)] == []


def test_uninstall_leaves_running_pods(stage: Stage) -> None:
    """With their nodes and records; of Tessera's own there is a Lease and the Secrets."""
    stage.helm("uninstall", "tessera")
    for name in list(stage.kubelet.running):
        stage.kubelet.stop(name)
    assert all(stage.bound(name) for name in (*EXAMPLES, "late"))
    kept = {
        kind: {one["metadata"]["name"] for one in stage.items(f"{group}/namespaces/{NAMESPACE}/{kind}")}
        for group, kind in (("/api/v1", "secrets"), ("/apis/coordination.k8s.io/v1", "leases"))
    }
    assert kept == {"secrets": {"tessera-webhook", "tessera-tls"}, "leases": {"tessera-extender"}}
