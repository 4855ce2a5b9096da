"""The chart with Helm itself, and the rules with promtool itself: both are built once, as the control plane is."""

import json
import operator
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.deploy.programs import tool
from tests.deploy.rendered import CHART, KUBERNETES, MANIFEST, NAMESPACE, helm, manifest, template
from tests.deploy.schemas import SUMS, faults, openapi
from tests.deploy.test_chart import one_of
from tests.deploy.test_deploy import document
from tests.deploy.test_monitoring import panels
from tests.e2e.controlplane.binaries import MissingComponentError
from tests.e2e.controlplane.cluster import ControlPlane
from tests.e2e.scene import DEPLOY, ROOT

pytestmark = pytest.mark.e2e

Json = dict[str, Any]
EXISTING: Final = ("--set", "layout=existing-scheduler", "--set", "extender.tls.secretName=tessera-tls")
CERT_MANAGER: Final = (
    *("--set", "webhook.certificates.mode=cert-manager"),
    *("--set", "webhook.certificates.issuerRef.name=ca"),
)
EVERYTHING: Final = (
    *("--set", "networkPolicy.enabled=true", "--set", "monitoring.dashboard.enabled=true"),
    *("--set", "networkPolicy.webhookFrom[0].ipBlock.cidr=10.0.0.0/28", "--set", "agent.runtimeClassName=gpu"),
    *("--set", "extender.settings.evict=enforce", "--set", "agent.settings.evict=true"),
    *("-a", "monitoring.coreos.com/v1"),
)
FLAGS: Final = {
    "defaults": (),
    "tls": EXISTING,
    "tls and all": (*EXISTING, *EVERYTHING),
    "certificates and all": (*CERT_MANAGER, *EVERYTHING),
}
CONTAINER: Final = ("spec", "template", "spec", "containers", 0)
# By a name for the case: what is put where in the extender's Deployment, and what the fault says.
MISTAKES: Final = {
    "an unknown field": ((*CONTAINER, "comand"), [], "$.spec.template.spec.containers[0]: there is no field comand"),
    "a wrong type": (
        (*CONTAINER, "ports", 0, "containerPort"),
        "http",
        "$.spec.template.spec.containers[0].ports[0].containerPort: 'http' is not of type 'integer'",
    ),
    "a missing field": (CONTAINER, {}, "$.spec.template.spec.containers[0]: 'name' is a required property"),
    "a missing map": (("spec",), {}, "$.spec: 'selector' is a required property"),
    "an unknown kind": (("kind",), "Deploymint", "$.kind: Kubernetes {} serves none of apps/v1"),
    "a version of long ago": (("apiVersion",), "apps/v1beta2", "$.kind: Kubernetes {} serves none of apps/v1beta2"),
    "an API of nobody": (("apiVersion",), "example.com/v1", "$.kind: Kubernetes {} serves none of example.com/v1"),
}
# By a name for the case: flags, and what the refusal says.
REFUSED: Final = {
    "unknown value": (["extender.replica=2"], "replica"),
    "no replica": (["extender.replicas=0"], "minimum"),
    "a layout that is none": (["layout=sidecar"], "layout"),
    "unknown setting": (["extender.settings.polcy=fgd"], "polcy"),
    "a policy that is none": (["extender.settings.policy=best"], "policy"),
    "overcommit below one": (["extender.settings.overcommit=0.5"], "overcommit is 0.5: must be a factor"),
    "a setting of the chart's own": (["extender.settings.port=1"], "port"),
    "an agent's setting that is none": (["agent.settings.intervall=1"], "intervall"),
    "an agent's interval": (["agent.settings.interval=0"], "interval"),
    "no TLS across the network": (["layout=existing-scheduler"], "needs extender.tls.secretName: a Secret with"),
    "TLS over loopback": (["extender.tls.secretName=x"], "extender.tls is for layout existing-scheduler"),
    "the cluster's scheduler": (["scheduler.name=default-scheduler"], "which is the cluster's own"),
    "no issuer": (["webhook.certificates.mode=cert-manager"], "needs webhook.certificates.issuerRef, such as"),
    "no bundle": (["webhook.certificates.mode=secret"], "needs secretName and caBundle"),
    "nobody to evict": (["agent.settings.evict=true", "agent.enabled=false"], "nobody would evict"),
}


def test_manifest_is_what_the_chart_makes() -> None:
    """`python -m tests.deploy.rendered` has been run after the last change."""
    assert MANIFEST.read_text() == manifest()


def test_helm_lints_and_packages_the_chart(tmp_path: Path) -> None:
    """Without a warning; the archive carries the files behind the links."""
    assert "[WARNING]" not in helm("lint", str(CHART), "--strict", "-n", NAMESPACE, "--kube-version", KUBERNETES)
    helm("package", str(CHART), "-d", str(tmp_path))
    (archive,) = tmp_path.glob("*.tgz")
    shown = helm("template", "tessera", str(archive), "-n", NAMESPACE, "--kube-version", KUBERNETES)
    assert {one["kind"] for one in yaml.safe_load_all(shown)} >= {"CustomResourceDefinition", "Deployment"}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_values_are_refused_with_a_sentence(case: str) -> None:
    """The message names the value, or says what to do."""
    flags, sentence = REFUSED[case]
    with pytest.raises(subprocess.CalledProcessError) as error:
        template(*(word for flag in flags for word in ("--set", flag)))
    assert sentence in error.value.stderr


@pytest.mark.parametrize("namespace", ["default", "kube-system", "tessera-agents"])
def test_it_wants_a_namespace_of_its_own(namespace: str) -> None:
    """The sentence says how to install instead."""
    with pytest.raises(subprocess.CalledProcessError) as error:
        template(namespace=namespace)
    assert "install with --namespace tessera-system --create-namespace" in error.value.stderr


@pytest.mark.parametrize("flags", [(), ("--set", "agent.namespace=cards")])
def test_a_namespace_with_the_agents_in_its_name_is_refused(flags: tuple[str, ...]) -> None:
    """It would be renamed as theirs is."""
    with pytest.raises(subprocess.CalledProcessError) as error:
        template(*flags, namespace="my-tessera-agents")
    assert '"my-tessera-agents" has tessera-agents in its name' in error.value.stderr


def test_names_follow_the_release() -> None:
    """In another namespace accounts, policies and roles speak of that one; a renamed resource is renamed all over."""
    flags = ("--set", "agent.namespace=cards", "--set", "extender.settings.memory_resource=example.com/mib")
    text = json.dumps(template(*flags, namespace="shares"))
    assert "tessera-system" not in text
    assert "tessera-agents" not in text
    assert "nvidia.com/gpu-memory" not in text
    assert "system:serviceaccount:shares:tessera-extender" in text
    assert "system:serviceaccount:cards:tessera-agent" in text


@pytest.mark.parametrize(
    ("classes", "listed"),
    [
        ({}, '["nvidia"]'),
        ({"agent.runtimeClassName": ""}, '["nvidia"]'),
        ({"agent.runtimeClassName": "gpu"}, '["nvidia","gpu"]'),
        ({"agent.runtimeClassName": "gpu", "extender.settings.runtime_class": "cuda"}, '["nvidia","gpu","cuda"]'),
    ],
)
def test_the_guard_knows_the_classes_that_reach_cards(classes: dict[str, str], listed: str) -> None:
    """That of the agents and that of pods that ask, whatever they are called; a pod that names none is let in."""
    made = template(*(word for name, value in classes.items() for word in ("--set", f"{name}={value}")))
    guard = one_of(made, "ValidatingAdmissionPolicy", "tessera-guard")
    refused = [one["expression"] for one in guard["spec"]["validations"] if "variables.runtime" in one["expression"]]
    shipped = 'request.operation == "UPDATE" || !(variables.runtime.startsWith("nvidia") || variables.runtime in {})'
    assert refused == [shipped.format(listed)]


@pytest.mark.parametrize(
    ("flags", "given"),
    [
        ((), "nvidia"),
        (("agent.runtimeClassName=gpu",), "gpu"),
        (("agent.runtimeClassName=gpu", "extender.settings.runtime_class=cuda"), "cuda"),
        (("extender.settings.runtime_class=",), ""),
        (("agent.runtimeClassName=",), None),
    ],
)
def test_pods_that_ask_get_the_agents_class_unless_a_setting_says_otherwise(
    flags: tuple[str, ...], given: str | None
) -> None:
    """To say that they get none is to say otherwise."""
    made = template(*(word for flag in flags for word in ("--set", flag)))
    settings = yaml.safe_load(one_of(made, "ConfigMap", "tessera-extender")["data"]["extender.yaml"])
    assert settings.get("runtime_class") == given


@pytest.mark.parametrize(("evict", "may"), [("never", False), ("dry-run", False), ("enforce", True)])
def test_only_who_evicts_may(evict: str, may: bool) -> None:
    """A dry run tells by Events, which the extender may write in any case."""
    made = template("--set", f"extender.settings.evict={evict}")
    roles = [one for one in made if one["kind"] == "ClusterRole" and "extender" in one["metadata"]["name"]]
    given = {resource for role in roles for rule in role["rules"] for resource in rule["resources"]}
    assert ("pods/eviction" in given, "events" in given) == (may, True)


def test_the_webhooks_port_can_be_kept_to_some() -> None:
    """The others stay open to kubelets and Prometheus, of which nobody knows where they are."""
    peer = "networkPolicy.webhookFrom[0].ipBlock.cidr=10.0.0.0/28"
    for flags, sources in (((), {}), (("--set", peer), {"from": [{"ipBlock": {"cidr": "10.0.0.0/28"}}]})):
        made = template("--set", "networkPolicy.enabled=true", *flags)
        others, webhook = one_of(made, "NetworkPolicy", "tessera-extender")["spec"]["ingress"]
        assert others == {"ports": [{"port": "probes"}, {"port": "scheduler"}]}
        assert webhook == {"ports": [{"port": "webhook"}]} | sources


def test_two_layouts_differ_where_they_must() -> None:
    """Across the network: mTLS, a Lease, the leader's Service, and no scheduler nor its rights."""
    made = {(one["kind"], one["metadata"]["name"]): one for one in template(*EXISTING)}
    (container,) = made["Deployment", "tessera-extender"]["spec"]["template"]["spec"]["containers"]
    assert container["name"] == "extender"
    assert made["Service", "tessera-extender"]["spec"]["selector"]["tessera.gpu/leader"] == "true"
    settings = yaml.safe_load(made["ConfigMap", "tessera-extender"]["data"]["extender.yaml"])
    assert settings["lead"] == "lease"
    assert settings["tls_client_ca"]
    assert ("ClusterRoleBinding", "tessera-kube-scheduler") not in made
    assert ("Role", "tessera-extender-replica") in made
    service = made["Service", "tessera-extender"]
    asked = document("scheduler/config-tls.yaml", "KubeSchedulerConfiguration")["extenders"][0]["urlPrefix"]
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    assert asked == f"https://{service['metadata']['name']}.{NAMESPACE}.svc:{ports['verbs']}"


def test_monitoring_is_made_where_it_is_known() -> None:
    """Without the operator's API there is none of its objects; with it they carry the very rules."""
    kinds = {"PodMonitor", "PrometheusRule"}
    assert not kinds & {one["kind"] for one in template()}
    made = template("-a", "monitoring.coreos.com/v1", "--set", "monitoring.rules.docsUrl=https://docs.example/")
    assert kinds <= {one["kind"] for one in made}
    (rule,) = [one for one in made if one["kind"] == "PrometheusRule"]
    shipped = (DEPLOY / "monitoring/rules.yaml").read_text()
    shipped = shipped.replace("runbook_url: docs/", "runbook_url: https://docs.example/")
    assert rule["spec"] == yaml.safe_load(shipped)


def documented() -> Iterator[list[str]]:
    """Yield the flags of every `helm install` of README and docs/."""
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for line in re.findall(r"^helm install (.*)$", page.read_text().replace("\\\n", " "), re.MULTILINE):
            yield shlex.split(line)


def test_documented_installs_are_taken() -> None:
    """Each of them renders, word for word."""
    lines = list(documented())
    assert len(lines) >= 3
    for words in lines:
        flags = [str(ROOT / word) if word.startswith("deploy/") else word for word in words]
        helm("template", *flags, "--kube-version", KUBERNETES)


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane with the two namespaces, which a dry run cannot look into before they are there."""
    with ControlPlane() as plane:
        for name in (NAMESPACE, "tessera-agents"):
            plane.kubectl("create", "namespace", name)
        plane.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
        yield plane


def served(made: Iterable[Json]) -> list[Json]:
    """Return the objects whose kinds an API server has without anybody's operator."""
    return [one for one in made if not one["apiVersion"].startswith(("monitoring.coreos.com", "cert-manager.io"))]


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
@pytest.mark.parametrize("version", SUMS)
def test_every_object_follows_the_schemas_of_a_version(version: str, flags: tuple[str, ...]) -> None:
    """What the chart makes for it has no field that its API server does not know, and lacks none."""
    made = served(template(*flags, kubernetes=version))
    assert len(made) >= 40
    assert [fault for one in made for fault in faults(version, one)] == []


@pytest.mark.parametrize("version", SUMS)
def test_manifest_follows_the_schemas_of_a_version(version: str) -> None:
    """install.yaml is one file for all of them."""
    made = yaml.safe_load_all(MANIFEST.read_text())
    assert [fault for one in made for fault in faults(version, one)] == []


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("version", SUMS)
def test_schemas_find_a_mistake(version: str, mistake: str) -> None:
    """Each is told with the object's name and the path in it."""
    (made,) = [one for one in yaml.safe_load_all(MANIFEST.read_text()) if one["kind"] == "Deployment"]
    (*way, last), value, said = MISTAKES[mistake]
    reduce(operator.getitem, way, made)[last] = value
    told = faults(version, made)
    assert f"{made['kind']} tessera-extender: {said.format(version)}" in told


@pytest.mark.parametrize("version", SUMS)
def test_schemas_find_a_mistake_in_a_definition(version: str) -> None:
    """The schema in it has one itself, down to the items of a list."""
    made = document("crd/gpunodes.yaml", "CustomResourceDefinition")
    gpus = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["gpus"]
    gpus["items"]["properties"]["uuid"]["maxLenght"] = 1
    (fault,) = faults(version, made)
    assert fault.endswith(".status.properties.gpus.items.properties.uuid: there is no field maxLenght")


@pytest.mark.parametrize("version", SUMS)
def test_schemas_of_apis_that_are_off_do_not_count(version: str) -> None:
    """A claim is served as v1 by default; the documents know the beta as well."""
    claim: Json = {"kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": {}}
    assert faults(version, {"apiVersion": "resource.k8s.io/v1", **claim}) == []
    assert (openapi(version) / "apis__resource.k8s.io__v1beta1_openapi.json").is_file()
    assert len(faults(version, {"apiVersion": "resource.k8s.io/v1beta1", **claim})) == 1


def test_versions_of_the_schemas_are_documented() -> None:
    """Those and no others, and the one that everything is tried on is among them."""
    (told,) = re.findall(r"against the API schemas of ([\d., and]+) \(", (ROOT / "docs/upgrade.md").read_text())
    assert re.findall(r"[\d.]+", told) == list(SUMS)
    assert KUBERNETES in SUMS


def test_schemas_with_another_checksum_are_not_used(tmp_path: Path) -> None:
    """Nothing is kept of them either."""
    go = tmp_path / "go"
    go.write_text('#!/bin/sh\n[ $1 = version ] && echo go1.99.0 || echo \'{"Sum": "h1:others", "Dir": "/"}\'\n')
    go.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path)}
    with pytest.raises(MissingComponentError, match=r"with the checksum h1:others, where schemas\.py pins h1:qDQ"):
        openapi("1.36.3", environment)
    assert [path.name for path in (tmp_path / "tessera/schemas").iterdir()] == ["v1.36.3.lock"]


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_the_api_server_takes_every_object(plane: ControlPlane, flags: tuple[str, ...]) -> None:
    """A dry run on the server, strict about unknown fields, without one warning of Pod Security's either."""
    made = served(template(*flags))
    said = plane.kubectl(
        *("apply", "--dry-run=server", "--validate=strict", "-f", "-"), stdin=yaml.safe_dump_all(made)
    )
    assert len(said.splitlines()) == len(made)


@pytest.mark.parametrize("flags", [(), EXISTING], ids=["defaults", "tls"])
def test_pods_are_admitted_to_a_restricted_namespace(plane: ControlPlane, flags: tuple[str, ...]) -> None:
    """The API server's own check of the standard lets the extender's pod in, and keeps the agent's out."""
    made = {one["kind"]: one for one in template(*flags) if one["kind"] in ("Deployment", "DaemonSet")}
    for kind, ok in (("Deployment", True), ("DaemonSet", False)):
        spec = made[kind]["spec"]["template"]["spec"]
        spec.pop("runtimeClassName", None)  # none is made here
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": NAMESPACE}, "spec": spec}
        command = ("create", "--dry-run=server", "-f", "-")
        if ok:
            plane.kubectl(*command, stdin=yaml.safe_dump(pod))
        else:
            with pytest.raises(RuntimeError, match="violates PodSecurity"):
                plane.kubectl(*command, stdin=yaml.safe_dump(pod))


def test_every_other_manifest_is_taken(plane: ControlPlane) -> None:
    """What is shipped beside the chart: all of deploy/ that is for an API server."""
    plane.kubectl("apply", "-f", str(DEPLOY / "crd"))
    for folder in ("crd", "policy", "rbac", "admission"):
        plane.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(DEPLOY / folder))
    plane.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(DEPLOY / "examples/pods.yaml"))
    plane.kubectl("apply", "--dry-run=server", "--server-side", "--validate=strict", "-f", str(MANIFEST))


def test_rules_say_what_they_should() -> None:
    """promtool finds them well formed, and each case of rules.test.yaml comes out."""
    for words in (
        ("check", "rules", "--lint=all", "--lint-fatal", str(DEPLOY / "monitoring/rules.yaml")),
        ("test", "rules", str(ROOT / "tests/deploy/rules.test.yaml")),
    ):
        done = subprocess.run([tool("promtool"), *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_dashboard_asks_what_prometheus_understands(tmp_path: Path) -> None:
    """Each panel's question is an expression, as promtool reads it in a rule."""
    targets = [target for panel in panels() for target in panel["targets"]]
    asked = [target["expr"].replace("$node", ".*").replace("$namespace", ".*") for target in targets]
    assert len(asked) >= 30
    rules = [{"record": f"asked:number_{i}", "expr": expression} for i, expression in enumerate(asked)]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(
        [tool("promtool"), "check", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
