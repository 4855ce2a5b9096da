"""What is shipped as YAML agrees with the contract, with itself, and with what was decided."""

from collections import defaultdict
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract import assignment, inventory, names
from extender.settings import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
EXTENDER = "system:serviceaccount:tessera-system:tessera-extender"


def documents(path: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all((DEPLOY / path).read_text()) if document]


def document(path: str, kind: str) -> dict[str, Any]:
    (found,) = [document for document in documents(path) if document["kind"] == kind]
    return found


def example(kind: str) -> dict[str, dict[str, Any]]:
    """Return the objects of one kind in the example cluster, by name."""
    (cluster,) = documents("examples/cluster.yaml")
    return {item["metadata"]["name"]: item for item in cluster["items"] if item["kind"] == kind}


# --- the custom resource ----------------------------------------------------------------------------------


@pytest.fixture
def crd() -> dict[str, Any]:
    return document("crd/gpunodes.yaml", "CustomResourceDefinition")


@pytest.fixture
def status(crd: dict[str, Any]) -> dict[str, Any]:
    (version,) = crd["spec"]["versions"]
    properties: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    return properties


def test_crd_is_named_as_the_contract_names_it(crd: dict[str, Any]) -> None:
    """Group, version, plural and kind are those that agents and extender ask the API server for."""
    spec = crd["spec"]
    assert (spec["group"], spec["names"]["plural"], spec["names"]["kind"]) == (
        names.GROUP,
        names.PLURAL,
        names.KIND,
    )
    assert [version["name"] for version in spec["versions"]] == [names.VERSION]
    assert crd["metadata"]["name"] == f"{names.PLURAL}.{names.GROUP}"


def test_crd_and_contract_know_the_same_properties_of_a_card(status: dict[str, Any]) -> None:
    """Every property of a card stands in both places, with types that agree."""
    gpu = status["gpus"]["items"]["properties"]
    parts = {
        inventory.Gpu: gpu,
        inventory.MigInstance: gpu["migInstances"]["items"]["properties"],
        inventory.MigProfile: status["migProfiles"]["items"]["properties"],
    }
    kinds: dict[Any, str] = {str: "string", bool: "boolean", int: "integer", int | None: "integer"}
    for part, properties in parts.items():
        wanted = {inventory.property_of(f.name): kinds.get(f.type, "array") for f in fields(part)}
        if part is inventory.Gpu:  # the agent's words and the extender's stand in two lists, one writer each
            properties = properties | status["promises"]["items"]["properties"]
        assert {name: field["type"] for name, field in properties.items()} == wanted


def test_crd_and_contract_know_the_same_properties_of_a_node(status: dict[str, Any]) -> None:
    """Beside the conditions, a status has the properties that the contract writes."""
    gpus = (inventory.Gpu("GPU-1", promised_mib=1),)
    full = inventory.encode(inventory.Inventory("n", gpus, "570", "12.8", (inventory.MigProfile("A"),)))
    assert set(status) == set(full) | {"conditions", "summary"}


def test_crd_lists_have_one_writer_or_keys(status: dict[str, Any]) -> None:
    """A list of one writer is written whole, which keeps the API server's own notes short; all have an end."""
    for name in ("gpus", "promises"):
        assert status[name]["x-kubernetes-list-type"] == "atomic"
        assert status[name]["items"]["required"] == ["uuid"]
        assert status[name]["maxItems"] > 0
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]


def test_crd_lets_newer_agents_say_more(crd: dict[str, Any], status: dict[str, Any]) -> None:
    """Fields that this schema does not know survive on a status and on a card."""
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert schema["properties"]["status"]["x-kubernetes-preserve-unknown-fields"] is True
    assert status["gpus"]["items"]["x-kubernetes-preserve-unknown-fields"] is True


# --- rights -----------------------------------------------------------------------------------------------


def test_to_evict_takes_more_rights_that_are_given_apart() -> None:
    """Evictions alone, for the extender's own account."""
    assert document("rbac/evict.yaml", "ClusterRole")["rules"] == [
        {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    ]
    mine, main = (document(f"rbac/{name}.yaml", "ClusterRoleBinding") for name in ("evict", "extender"))
    assert mine["subjects"] == main["subjects"]
    assert mine["roleRef"]["name"] == document("rbac/evict.yaml", "ClusterRole")["metadata"]["name"]


def test_extender_has_these_rights_and_no_others() -> None:
    """It reads three kinds, binds, wakes pods, advertises totals, writes Events; a change is a decision to see."""
    assert document("rbac/extender.yaml", "ClusterRole")["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["pods", "nodes/status"], "verbs": ["patch"]},
        {"apiGroups": ["tessera.gpu"], "resources": ["gpunodes"], "verbs": ["list", "watch"]},
        {"apiGroups": ["tessera.gpu"], "resources": ["gpunodes/status"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
        {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ["list"]},
    ]
    kinds = [document["kind"] for document in documents("rbac/extender.yaml")]
    assert kinds == [
        "Namespace",
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Namespace",
        "Role",
        "RoleBinding",
    ]
    assert document("rbac/extender.yaml", "Role")["rules"] == [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["list", "watch"]}
    ]


def test_agents_have_these_rights_and_no_others() -> None:
    """An agent reports cards and heartbeats, reads pods and nodes, and says what pods do; it may not change them."""
    role, evict = (d for d in documents("rbac/agent.yaml") if d["kind"] == "ClusterRole")
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
        {"apiGroups": ["tessera.gpu"], "resources": ["gpunodes"], "verbs": ["get", "create", "patch"]},
        {"apiGroups": ["tessera.gpu"], "resources": ["gpunodes/status"], "verbs": ["patch"]},
    ]
    assert evict["metadata"]["name"] == "tessera-agent-evict"
    assert evict["rules"] == [{"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}]
    leases = document("rbac/agent.yaml", "Role")
    assert leases["metadata"]["namespace"] == names.AGENTS
    assert leases["rules"] == [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "patch"]}
    ]
    (binding,) = (d for d in documents("rbac/agent.yaml") if d["kind"] == "ClusterRoleBinding")
    assert binding["roleRef"]["name"] == role["metadata"]["name"], "eviction is bound by who wants it"


def test_an_agent_may_write_what_is_its_own_nodes_alone() -> None:
    """The policy holds an agent's service account to the node that its token was made for."""
    policy = document("policy/agent.yaml", "ValidatingAdmissionPolicy")
    (condition,) = policy["spec"]["matchConditions"]
    account = f"system:serviceaccount:{names.AGENTS}:tessera-agent"
    assert condition["expression"] == f'request.userInfo.username == "{account}"'
    guarded = {r for rule in policy["spec"]["matchConstraints"]["resourceRules"] for r in rule["resources"]}
    assert guarded == {names.PLURAL, f"{names.PLURAL}/status", "leases"}
    binding = document("policy/agent.yaml", "ValidatingAdmissionPolicyBinding")["spec"]
    assert binding == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}


def test_rights_go_to_the_user_that_the_policy_lets_through() -> None:
    """The service account that is bound to the role is the one that may write records."""
    role = document("rbac/extender.yaml", "ClusterRole")
    binding = document("rbac/extender.yaml", "ClusterRoleBinding")
    account = document("rbac/extender.yaml", "ServiceAccount")["metadata"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", **account}]
    assert f"system:serviceaccount:{account['namespace']}:{account['name']}" == EXTENDER


def test_policy_leaves_the_extender_the_names_of_the_contract() -> None:
    """Of the right to patch pods remain two names, which the contract spells, and it fails closed."""
    spec = documents("policy/extender.yaml")[0]["spec"]
    assert spec["matchConstraints"]["resourceRules"][0]["resources"] == ["pods", "pods/status"]
    said = {variable["name"]: variable["expression"] for variable in spec["variables"]}
    assert f'["{names.RETRY}", "{names.LEADER}"] : ["{names.RETRY}"]' in said["free"]
    assert f'["{names.LEADER}"] : []' in said["freeLabels"]
    assert spec["failurePolicy"] == "Fail"
    (condition,) = spec["matchConditions"]
    assert condition["expression"] == f'request.userInfo.username == "{EXTENDER}"'
    binding = documents("policy/extender.yaml")[1]["spec"]
    assert binding == {"policyName": "tessera-extender", "validationActions": ["Deny"]}


def test_policy_leaves_the_extender_the_totals_of_nodes() -> None:
    """Of the right to patch a node's status remain the resources of the contract, and it fails closed."""
    policy, binding = documents("policy/extender.yaml")[2:]
    spec, resources = policy["spec"], names.Resources()
    (totals,) = (v["expression"] for v in spec["variables"] if v["name"] == "totals")
    assert yaml.safe_load(totals) == [resources.memory, resources.utilization, resources.share]
    assert spec["failurePolicy"] == "Fail"
    (condition,) = spec["matchConditions"]
    assert condition["expression"] == f'request.userInfo.username == "{EXTENDER}"'
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}


# --- who may write a record -------------------------------------------------------------------------------


def test_policy_guards_the_annotations_of_the_contract() -> None:
    """The expression names the record and the lists of devices, with the keys that the contract makes."""
    (validation,) = document("policy/assignment.yaml", "ValidatingAdmissionPolicy")["spec"]["validations"]
    ours = f'key == "{names.ASSIGNMENT}" || key.startsWith("{names.DEVICES}.")'
    assert validation["expression"].count(ours) == 2
    assert validation["expression"].count('"') == 8, "no other name is spelled there"
    assert f"{names.ASSIGNMENT} and {names.DEVICES}.*" in validation["message"]
    assert all(names.devices_key("c" * n).startswith(f"{names.DEVICES}.") for n in (1, 55, 63))


def test_policy_refuses_everybody_else_on_every_way_to_a_pods_annotations() -> None:
    """It covers what can write annotations of a pod, fails closed, and lets only the extender through."""
    policy = document("policy/assignment.yaml", "ValidatingAdmissionPolicy")
    rules = policy["spec"]["matchConstraints"]["resourceRules"]
    covered = {(operation, resource) for r in rules for operation in r["operations"] for resource in r["resources"]}
    assert covered == {
        ("CREATE", "pods"),
        ("UPDATE", "pods"),
        ("UPDATE", "pods/status"),
        ("CREATE", "pods/binding"),
        ("CREATE", "bindings"),
    }
    assert policy["spec"]["failurePolicy"] == "Fail"
    (condition,) = policy["spec"]["matchConditions"]
    assert condition["expression"] == f'request.userInfo.username != "{EXTENDER}"'
    binding = document("policy/assignment.yaml", "ValidatingAdmissionPolicyBinding")["spec"]
    assert binding == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}


# --- kube-scheduler ---------------------------------------------------------------------------------------


def test_scheduler_asks_the_extender_as_decided() -> None:
    """Verbs, weight and time limits are those that the extender is written for."""
    config = document("scheduler/config.yaml", "KubeSchedulerConfiguration")
    assert config["percentageOfNodesToScore"] == 100
    assert config["leaderElection"] == {"leaderElect": True}
    (extender,) = config["extenders"]
    resources = names.Resources()
    assert extender == {
        "urlPrefix": "http://127.0.0.1:8580",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "bindVerb": "bind",
        "weight": 20,
        "nodeCacheCapable": True,
        "ignorable": False,
        "httpTimeout": "5s",
        "managedResources": [
            {"name": name, "ignoredByScheduler": False}
            for name in (resources.memory, resources.utilization, resources.share)
        ],
    }


def test_scheduler_configurations_differ_in_managed_resources_alone() -> None:
    """The configuration for annotations asks about every pod and is otherwise the shipped one."""
    shipped = document("scheduler/config.yaml", "KubeSchedulerConfiguration")
    annotations = document("scheduler/config-annotations-only.yaml", "KubeSchedulerConfiguration")
    assert annotations["extenders"][0].pop("managedResources") == []
    assert shipped["extenders"][0].pop("managedResources")
    assert annotations == shipped


def test_scheduler_configuration_with_tls_says_no_more_than_that() -> None:
    """Both sides show a certificate, and everything else is the shipped one."""
    shipped = document("scheduler/config.yaml", "KubeSchedulerConfiguration")
    tls = document("scheduler/config-tls.yaml", "KubeSchedulerConfiguration")
    (extender,) = tls["extenders"]
    files = extender.pop("tlsConfig")
    assert set(files) == {"caFile", "certFile", "keyFile", "serverName"}, "without caFile it would believe anyone"
    assert extender.pop("enableHTTPS") is True
    assert extender["urlPrefix"] == f"https://{files['serverName']}:8580"
    extender["urlPrefix"] = shipped["extenders"][0]["urlPrefix"]
    assert tls == shipped


def test_a_replica_may_take_one_lease_and_look_at_another() -> None:
    """Its own by name, except that nothing can be created by name, and kube-scheduler's to read."""
    made = [*documents("rbac/lead-lease.yaml"), *documents("rbac/lead-follow.yaml")]
    roles = {d["metadata"]["name"]: d for d in made if d["kind"] == "Role"}
    settings = Settings.model_validate({"lead": "lease", "pod_name": "p", "pod_namespace": "tessera-system"})
    followed = Settings.model_validate({"lead": "follow"})
    leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    for role, (namespace, name), rules in (
        (
            "tessera-extender-replica",
            settings.lease,
            [leases | {"verbs": ["create"]}, leases | {"verbs": ["get", "update"]}],
        ),
        ("tessera-extender-follower", followed.lease, [leases | {"verbs": ["get"]}]),
    ):
        rules[-1]["resourceNames"] = [name]
        assert roles[role]["metadata"]["namespace"] == namespace
        assert roles[role]["rules"] == rules
    for binding in (d for d in made if d["kind"] == "RoleBinding"):
        assert binding["roleRef"]["name"] == binding["metadata"]["name"]
        assert binding["metadata"]["namespace"] == roles[binding["metadata"]["name"]]["metadata"]["namespace"]
        (subject,) = binding["subjects"]
        assert f"system:{subject['kind'].lower()}:{subject['namespace']}:{subject['name']}" == EXTENDER


# --- the examples -----------------------------------------------------------------------------------------


def test_example_inventories_are_what_an_agent_publishes() -> None:
    """Every GPUNode decodes, and encoding it again gives the same status, to the last field."""
    for name, gpunode in example("GPUNode").items():
        status = {key: value for key, value in gpunode["status"].items() if key != "conditions"}
        decoded = inventory.decode(name, status, gpunode["apiVersion"])
        assert decoded.gpus
        assert inventory.encode(decoded) == status


def test_example_cards_are_distinct() -> None:
    """No uuid appears on two cards, and NVLink peers are cards of the same node that name each other."""
    cards = {}
    for name, gpunode in example("GPUNode").items():
        for gpu in inventory.decode(name, gpunode["status"]).gpus:
            assert gpu.uuid not in cards
            cards[gpu.uuid] = (name, gpu)
    for uuid, (node, gpu) in cards.items():
        assert all(cards[peer][0] == node and uuid in cards[peer][1].nvlink for peer in gpu.nvlink)


def test_example_nodes_and_inventories_go_together() -> None:
    """There are fourteen nodes of mixed cards, each with its GPUNode and with room for pods."""
    nodes, gpunodes = example("Node"), example("GPUNode")
    assert set(nodes) == set(gpunodes)
    assert len(nodes) == 14
    assert len({gpu["model"] for gpunode in gpunodes.values() for gpu in gpunode["status"]["gpus"]}) >= 6
    assert all(set(node["status"]["allocatable"]) == {"cpu", "memory", "pods"} for node in nodes.values())


def test_example_shows_what_a_cluster_can_have() -> None:
    """One node's compute is overcommitted, one card is not healthy and says why, one is used by others."""
    notes = {name: node["metadata"].get("annotations") for name, node in example("Node").items()}
    assert {name: note for name, note in notes.items() if note} == {"a10x1-0": {names.OVERCOMMIT: "1.3"}}
    cards = [gpu for name, node in example("GPUNode").items() for gpu in inventory.decode(name, node["status"]).gpus]
    assert [bool(gpu.reason) for gpu in cards if not gpu.healthy] == [True]
    assert [gpu.foreign_mib <= (gpu.used_mib or 0) for gpu in cards if gpu.foreign_mib] == [True]


def test_example_records_name_cards_of_their_node_and_fit() -> None:
    """Every running pod of ours holds cards that its node has, within what those can give."""
    promised: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    cards = {}
    for pod in example("Pod").values():
        notes, spec = pod["metadata"].get("annotations", {}), pod["spec"]
        if names.ASSIGNMENT not in notes:
            continue
        record = assignment.decode(notes[names.ASSIGNMENT])
        assert (record.node, record.uid) == (spec["nodeName"], pod["metadata"]["uid"])
        assert set(record.containers) <= {container["name"] for container in spec["containers"]}
        assert assignment.annotations(record).items() <= notes.items()
        gpunode = example("GPUNode")[record.node]
        cards.update({gpu.uuid: gpu for gpu in inventory.decode(record.node, gpunode["status"]).gpus})
        for grant in (grant for grants in record.containers.values() for grant in grants):
            assert grant.gpu in cards
            promised[grant.gpu][0] += grant.mib
            promised[grant.gpu][1] += grant.milli
    assert len(promised) == 3
    for uuid, (mib, milli) in promised.items():
        assert mib <= (cards[uuid].memory_mib or 0) - cards[uuid].reserved_mib
        assert milli <= 1000


def test_example_pods_use_only_names_of_the_contract() -> None:
    """Every key and resource is one that exists, and a container's key names one of its containers."""
    pods = documents("examples/pods.yaml")
    assert len({pod["metadata"]["name"] for pod in pods}) == len(pods) == 6
    resources = names.Resources()
    for pod in pods:
        spec = pod["spec"]
        containers = [*spec.get("initContainers", []), *spec["containers"]]
        keys = {f"{key}.{container['name']}" for key in names.PER_CONTAINER for container in containers}
        assert set(pod["metadata"].get("annotations", {})) <= keys | set(names.PER_CONTAINER) | set(names.PER_POD)
        asked = {name for container in containers for name in container.get("resources", {}).get("limits", {})}
        assert asked <= {resources.memory, resources.utilization, resources.share}
