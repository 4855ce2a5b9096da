"""The chart and what is made from it, without Helm: install.yaml is the chart's defaults, which e2e compares."""

import json
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from extender.settings import Settings
from tests.deploy import rendered
from tests.deploy.test_deploy import DEPLOY, documents

Json = dict[str, Any]
OURS: Final = ("Deployment", "DaemonSet")
# As they are in the files of deploy/, which the end-to-end tests use.
SHARED: Final = (
    "crd/gpunodes.yaml",
    *(f"policy/{name}.yaml" for name in ("agent", "assignment", "extender")),
    *(f"rbac/{name}.yaml" for name in ("admission", "agent", "extender", "users")),
    *(f"admission/{name}.yaml" for name in ("devices", "namespace", "quota", "request", "unchanged", "webhooks")),
)


@pytest.fixture(scope="module")
def made() -> list[Json]:
    """Return the objects of install.yaml."""
    return [one for one in yaml.safe_load_all(rendered.MANIFEST.read_text()) if one]


def key(one: Json) -> tuple[str, str, str]:
    """Return what an object is known by."""
    return one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]


def one_of(made: list[Json], kind: str, name: str) -> Json:
    """Return the object of a kind and name."""
    (found,) = [one for one in made if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


def test_manifest_has_the_files_of_deploy_to_the_letter(made: list[Json]) -> None:
    """Every object of the shared files is there once, and differs in labels and Helm's annotations alone."""
    by_key = {key(one): one for one in made}
    assert len(by_key) == len(made)
    for path in SHARED:
        for shipped in documents(path):
            if shipped["kind"] == "Namespace":
                continue
            found = json.loads(json.dumps(by_key[key(shipped)]))
            for part in ("labels", "annotations"):
                wanted = shipped["metadata"].get(part, {})
                assert wanted.items() <= found["metadata"].pop(part, {}).items()
                shipped["metadata"].pop(part, None)
            assert found == shipped, path


def test_chart_is_of_the_projects_version() -> None:
    """Chart, application, wheel and images are released as one."""
    chart = yaml.safe_load((rendered.CHART / "Chart.yaml").read_text())
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    assert project["version"] == chart["version"] == chart["appVersion"]
    for image in ("extender", "agent"):
        assert f"ARG VERSION={chart['version']}\n" in (DEPLOY / "images" / image / "Dockerfile").read_text()


def test_values_know_the_settings_of_the_code() -> None:
    """A setting that is new, gone or bounded otherwise is so in the values' schema, too."""
    assert json.loads(rendered.SCHEMA.read_text()) == rendered.schema()


def test_settings_of_the_chart_are_settings(made: list[Json]) -> None:
    """The extender takes the file that the chart writes, and serves the verbs on loopback alone."""
    files = one_of(made, "ConfigMap", "tessera-extender")["data"]
    said = yaml.safe_load(files["extender.yaml"])
    settings = Settings(**said | {"pod_name": "p", "pod_namespace": "tessera-system"})
    assert said.keys() <= rendered.OF_EXTENDER | {"runtime_class"}
    agents = one_of(made, "DaemonSet", "tessera-agent")["spec"]["template"]["spec"]
    assert settings.runtime_class == agents["runtimeClassName"], "who asks for a card can see it"
    assert (settings.host, settings.lead) == ("127.0.0.1", "follow")
    scheduler = yaml.safe_load(files["scheduler.yaml"])
    election = scheduler["leaderElection"]
    assert settings.lease == (election["resourceNamespace"], election["resourceName"])
    assert [profile["schedulerName"] for profile in scheduler["profiles"]] == [settings.scheduler_name]


def test_scheduler_of_the_chart_is_the_shipped_one(made: list[Json]) -> None:
    """It differs from deploy/scheduler/config.yaml in its name, its Lease and its credentials alone."""
    ours = yaml.safe_load(one_of(made, "ConfigMap", "tessera-extender")["data"]["scheduler.yaml"])
    (shipped,) = documents("scheduler/config.yaml")
    assert shipped.pop("clientConnection")
    del ours["profiles"], ours["leaderElection"], shipped["leaderElection"]
    assert ours == shipped


def test_pods_of_the_extender_are_restricted(made: list[Json]) -> None:
    """Each demand of the standard is met by name, and the root file system is read-only on top."""
    spec = one_of(made, "Deployment", "tessera-extender")["spec"]["template"]["spec"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert {kind for volume in spec["volumes"] for kind in volume} == {"name", "configMap", "emptyDir"}
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_agents_have_of_the_host_what_they_need(made: list[Json]) -> None:
    """Its processes and, to read, its cgroups; no privilege, no capability, no network of the host's."""
    spec = one_of(made, "DaemonSet", "tessera-agent")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["hostPID"] is True
    assert not {"hostNetwork", "hostIPC"} & spec.keys()
    assert spec["volumes"] == [{"name": "cgroup", "hostPath": {"path": "/sys/fs/cgroup", "type": "Directory"}}]
    assert [mount["readOnly"] for mount in container["volumeMounts"]] == [True]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "privileged" not in container["securityContext"]


def test_every_container_is_probed_and_bounded(made: list[Json]) -> None:
    """Start, life and readiness are asked on ports that the container has; it requests CPU and memory."""
    for one in (one for one in made if one["kind"] in OURS):
        for container in one["spec"]["template"]["spec"]["containers"]:
            ports = {port["name"] for port in container["ports"]}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                assert container[probe]["httpGet"]["port"] in ports
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()


def test_what_is_selected_is_there(made: list[Json]) -> None:
    """Services, budget and controllers select labels of our pods; a Service's port is one of theirs."""
    pods = [one["spec"]["template"] for one in made if one["kind"] in OURS]
    selecting = {"Service": 2, "PodDisruptionBudget": 1, "Deployment": 1, "DaemonSet": 1}
    for one in made:
        if one["kind"] not in selecting:
            continue
        selecting[one["kind"]] -= 1
        selector = one["spec"]["selector"]
        selector = selector.get("matchLabels", selector)
        (pod,) = [pod for pod in pods if selector.items() <= pod["metadata"]["labels"].items()]
        ports = [port for container in pod["spec"]["containers"] for port in container["ports"]]
        for port in one["spec"].get("ports", []):
            known = {port["name"] for port in ports} | {port["containerPort"] for port in ports}
            assert port["targetPort"] in known
    assert not any(selecting.values())


def test_everything_is_labelled(made: list[Json]) -> None:
    """Whoever looks for what Tessera made finds it by the recommended labels."""
    for one in made:
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "tessera"
        assert {"app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"} <= labels.keys()


def test_no_file_of_the_chart_is_a_copy() -> None:
    """What the chart takes from deploy/ are links, so that there is one of each."""
    links = list((rendered.CHART / "files").iterdir())
    assert sorted(link.name for link in links) == ["admission", "crd", "monitoring", "policy", "rbac", "scheduler"]
    assert {link.readlink() for link in links} == {Path("../..", link.name) for link in links}
