"""Each check of doctor finds what it is there for, and says so when it could not look."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from extender.kubectl.doctor import POLICIES, diagnose
from extender.kubectl.facts import About, Facts, gather, seconds
from extender.wire import AgentLease, GpuNode, Node, Pod
from tests.builders import bound, gpu, pod
from tests.extender.kubectl.given import (
    CONTROL_PLANE,
    COORDINATION,
    LEASES,
    NOW,
    PROXY,
    Cluster,
    config_map,
    gpu_node,
    lease,
    node,
    raw,
    scene,
)

AT = seconds(NOW)


def of(kind: Any, *made: dict[str, Any]) -> list[Any]:
    """Return objects as the plugin decodes them."""
    return [msgspec.convert(item, kind) for item in made]


WELL = Facts(
    AT + 10,
    "1.0",
    {"gitVersion": "v1.36.3"},
    {"status": {"conditions": [{"type": "Established", "status": "True"}]}},
    of(GpuNode, gpu_node("n1", gpu("GPU-a"))),
    of(Node, node("n1")),
    of(Pod, raw(bound(pod("p"), "n1", [("GPU-a", 4096, 0)]))),
    of(AgentLease, lease("n1")),
    [{"webhooks": [{"name": "pods.tessera.gpu", "clientConfig": {"caBundle": "x"}, "failurePolicy": "Ignore"}]}],
    [{"metadata": {"name": name}} for name in POLICIES],
    [config_map()],
    About("1.0", "binpack"),
)


def found(facts: Facts) -> dict[str, tuple[str, str]]:
    """Return the worst of each check that is not ok."""
    return {row["check"]: (row["state"], row["found"]) for row in diagnose(facts).rows if row["state"] != "ok"}


def test_all_is_well() -> None:
    """Nothing to be told, and the exit is 0."""
    assert found(WELL) == {}
    assert not diagnose(WELL).failed


@pytest.mark.parametrize(
    ("check", "state", "word", "change"),
    [
        ("kubernetes", "fail", "older than 1.30", {"version": {"gitVersion": "v1.29.4"}}),
        ("kubernetes", "fail", "does not answer", {"version": None}),
        ("versions", "warn", "extender 0.9", {"about": About("0.9", "fgd")}),
        ("extender", "fail", "not ready", {"about": About("1.0", refusal="Tessera is not ready")}),
        ("extender", "warn", "does not answer", {"about": None}),
        ("crd", "fail", "is not there", {"crd": None}),
        ("crd", "fail", "is not established", {"crd": {"status": {}}}),
        ("inventory", "fail", "do the agents run", {"gpu_nodes": []}),
        ("inventory", "fail", "cannot be read: n1", {"gpu_nodes": of(GpuNode, gpu_node("n1", {"uuid": ""}))}),
        (
            "cards",
            "warn",
            "GPU-a on n1",
            {"gpu_nodes": of(GpuNode, gpu_node("n1", gpu("GPU-a") | {"healthy": False}))},
        ),
        ("agents", "fail", "1 of 1 were silent", {"now": AT + 91}),
        ("agents", "fail", "1 of 1 were silent for 5 s", {"about": About("1.0", silent_seconds=5)}),
        ("agents", "warn", "no heartbeat for n1: their cards are offered without one", {"leases": []}),
        ("agents", "warn", "the extender does not tell where it looks", {"leases": [], "about": None}),
        (
            "clocks",
            "warn",
            "more than 5 s off: n1",
            {"leases": of(AgentLease, lease("n1", "2026-05-01T11:59:50Z"))},
        ),
        ("totals", "fail", "n1 advertise no tessera.gpu/share", {"nodes": of(Node, {"metadata": {"name": "n1"}})}),
        ("plugins", "fail", "advertised too by n1", {"nodes": of(Node, node("n1", **{"nvidia.com_gpu": "1"}))}),
        ("records", "fail", "cannot be read", {"pods": of(Pod, raw(bound(pod("p"), "n1", text="{")))}),
        ("records", "warn", "without a record", {"pods": of(Pod, raw(pod("p", node="n1")))}),
        ("records", "fail", "do not report", {"pods": of(Pod, raw(bound(pod("p"), "n1", [("GPU-z", 1, 0)])))}),
        ("webhook", "warn", "none", {"webhooks": []}),
        ("webhook", "fail", "no caBundle", {"webhooks": [{"webhooks": [{"name": "pods.tessera.gpu"}]}]}),
        ("policies", "fail", "missing: tessera-assignment", {"policies": []}),
        ("scheduler", "warn", "no ConfigMap", {"config_maps": []}),
    ],
)
def test_what_is_wrong_is_told(check: str, state: str, word: str, change: dict[str, Any]) -> None:
    """With its weight and its reason."""
    told = found(replace(WELL, **change))
    assert told[check][0] == state
    assert word in told[check][1]
    assert diagnose(replace(WELL, **change)).failed == any(s == "fail" for s, _ in told.values())


def test_the_lease_of_a_node_that_was_taken_out_is_no_finding() -> None:
    """It belongs to the Node and stays when the GPUNode is deleted, with a heartbeat that grows old."""
    stray = lease("gone", "2026-04-01T12:00:00Z", "2026-04-01T12:00:20Z")
    assert found(replace(WELL, leases=of(AgentLease, lease("n1"), stray))) == {}


def test_where_nobody_answers_that_is_all_there_is_to_say() -> None:
    """And not the same sentence once more for every check."""
    nobody = Facts(AT, "1.0", missing={"version": "connection refused", "crd": "connection refused"})
    assert found(nobody) == {"kubernetes": ("fail", "the API server does not answer: connection refused")}


@pytest.mark.parametrize("fact", ["gpu_nodes", "nodes", "pods", "leases", "webhooks", "policies", "config_maps"])
def test_what_could_not_be_read_is_no_proof(fact: str) -> None:
    """A check that did not look says so, with the reason, and is not ok."""
    unseen: dict[str, Any] = {fact: None, "missing": {fact: "(Forbidden): not for you"}}
    told = found(replace(WELL, **unseen))
    assert ("warn", "not looked at: (Forbidden): not for you") in told.values()


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("nodeCacheCapable: true", "nodeCacheCapable: false", "nodeCacheCapable is not true"),
        ("ignorable: false", "ignorable: true", "ignorable is true"),
        ("percentageOfNodesToScore: 100", "percentageOfNodesToScore: 0", "percentageOfNodesToScore is not 100"),
        ("    prioritizeVerb: prioritize\n", "", "prioritizeVerb is missing"),
        ("    bindVerb: bind\n", "", "bindVerb is missing"),
        ("- {name: tessera.gpu/share, ignoredByScheduler: false}", "", "managedResources lacks tessera.gpu/share"),
        (
            "share, ignoredByScheduler: false",
            "share, ignoredByScheduler: true",
            "ignoredByScheduler is true for tessera.gpu/share",
        ),
    ],
)
def test_a_scheduler_configuration_that_differs_from_the_shipped_one(old: str, new: str, word: str) -> None:
    """What matters of it is told."""
    changed = config_map(lambda text: text.replace(old, new))
    assert word in found(replace(WELL, config_maps=[changed]))["scheduler"][1]


def test_a_config_map_that_is_no_yaml_is_none() -> None:
    """It is somebody else's."""
    broken = {"metadata": {"namespace": "x", "name": "y"}, "data": {"a": "KubeSchedulerConfiguration: ["}}
    assert found(replace(WELL, config_maps=[broken]))["scheduler"][0] == "warn"


OTHERS = """
kind: KubeSchedulerConfiguration
extenders:
  - urlPrefix: https://127.0.0.1:443
    filterVerb: filter
    bindVerb: bind
    managedResources: [{name: nvidia.com/gpu, ignoredByScheduler: true}]
"""


def test_the_extender_of_another_vendor_is_not_ours() -> None:
    """Whatever it looks like, it is not judged."""
    other = {"metadata": {"namespace": "kube-system", "name": "other"}, "data": {"config.yaml": OTHERS}}
    assert found(replace(WELL, config_maps=[config_map(), other])) == {}


@pytest.mark.parametrize(
    ("place", "about"),
    [
        ("http://127.0.0.1:8580", About("1.0")),
        ("http://localhost:9000/tessera", About("1.0", port=9000)),
        ("https://tessera-extender.prod.svc:8580", About("1.0", namespace="prod")),
    ],
)
def test_an_extender_that_manages_no_resources_is_ours_by_its_place(place: str, about: About) -> None:
    """As in the configuration for annotations alone, which is asked about every pod."""

    def changed(text: str) -> str:
        return text[: text.index("    managedResources:")].replace("http://127.0.0.1:8580", place)

    assert found(replace(WELL, about=about, config_maps=[config_map(changed)])) == {}


def trouble(cluster: Cluster, extender: str = "", clock: float = AT + 10) -> dict[str, str]:
    """Return what doctor says of the scene's agents and scheduler that is not ok."""
    api = replace(cluster.api, extender=extender or cluster.api.extender)
    told = found(gather(api, lambda: clock, "0.1.0"))
    return {check: why for check, (_, why) in told.items() if check in ("extender", "agents", "scheduler")}


def test_it_looks_where_the_extender_says() -> None:
    """Release and agents may have other namespaces, by the chart's values."""
    cluster = scene()
    there = cluster.there
    there["/api/v1/namespaces/prod/configmaps"] = there.pop("/api/v1/namespaces/tessera-system/configmaps")
    there[f"{COORDINATION}/gpu-agents/leases"] = there.pop(LEASES)
    about = there.pop(f"{PROXY}/about") | {"namespace": "prod", "agentNamespace": "gpu-agents"}
    there[f"{PROXY.replace('tessera-system', 'prod')}/about"] = about
    assert trouble(cluster, "prod/http:tessera-extender:probes") == {}


def test_without_the_extender_it_looks_where_the_extender_should_be() -> None:
    """`--extender` names its namespace."""
    cluster = scene()
    cluster.there["/api/v1/namespaces/prod/configmaps"] = cluster.there.pop(
        "/api/v1/namespaces/tessera-system/configmaps"
    )
    assert trouble(cluster, "prod/http:tessera-extender:probes").keys() == {"extender"}


def test_the_clock_of_this_machine_is_not_asked() -> None:
    """The extender tells the time; without it the control plane's Leases do."""
    cluster = scene()
    assert trouble(cluster, clock=AT + 130) == {}
    del cluster.there[f"{PROXY}/about"]
    cluster.there[CONTROL_PLANE] = [lease("kube-scheduler", NOW, "2026-05-01T12:00:12Z")]
    assert trouble(cluster, clock=AT + 130).keys() == {"extender"}
    cluster.there[CONTROL_PLANE] = [lease("kube-scheduler", NOW, "2026-05-01T12:02:00Z")]
    assert trouble(cluster)["agents"] == "2 of 2 were silent for 90 s: big, small"
