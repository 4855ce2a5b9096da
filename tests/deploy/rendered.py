"""Renders the chart; `python -m tests.deploy.rendered` writes what is made from it and from the code.

That is deploy/manifests/install.yaml, and the parts of the values' schema that the processes' settings are.
"""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import yaml

from extender.settings import Settings
from nodeagent.settings import Settings as AgentSettings
from scoring.policies import POLICIES
from tests.deploy.programs import tool

CHART: Final = Path(__file__).parents[2] / "deploy/chart"
MANIFEST: Final = CHART.parent / "manifests/install.yaml"
SCHEMA: Final = CHART / "values.schema.json"
KUBERNETES: Final = "1.36.3"
NAMESPACE: Final = "tessera-system"
HEAD: Final = """# Tessera with the chart's defaults, without Helm: kubectl apply --server-side -f install.yaml
#
# Made from deploy/chart by `python -m tests.deploy.rendered`; a test compares. Names of images are placeholders until
# you have built them: docs/install.md.
"""

# What the chart says itself, from its other values.
OF_EXTENDER: Final = frozenset(
    "cluster kubeconfig context host port probe_port tls_cert tls_key tls_client_ca tls_client_names trust_network"  # noqa: SIM905
    " lead lease_name lease_namespace pod_name pod_namespace prefix agent_namespace scheduler_name webhook_port"
    " webhook_certificates webhook_cert webhook_key webhook_secret webhook_names".split()
)
OF_AGENT: Final = frozenset(
    ["node", "server", "token_file", "ca_file", "lease_namespace", "host", "port", "proc", "cgroup_root"]
)
Json = dict[str, Any]


def helm(*args: str) -> str:
    """Return what helm printed. Raises CalledProcessError, whose `stderr` says why."""
    done = subprocess.run([tool("helm"), *args], capture_output=True, text=True, check=True)
    return done.stdout


def template(*flags: str, namespace: str = NAMESPACE, kubernetes: str = KUBERNETES) -> list[Json]:
    """Return the objects that the chart makes with these flags for a version of Kubernetes."""
    return [made for made in yaml.safe_load_all(text(*flags, namespace=namespace, kubernetes=kubernetes)) if made]


def text(*flags: str, namespace: str = NAMESPACE, kubernetes: str = KUBERNETES) -> str:
    """Return the same as text."""
    return helm("template", "tessera", str(CHART), "-n", namespace, "--kube-version", kubernetes, *flags)


def manifest() -> str:
    """Return install.yaml."""
    # Applied by kubectl, nobody manages it but that.
    return HEAD + text("--set", "namespaces.release=true").replace("managed-by: Helm", "managed-by: kubectl")


def extender_settings() -> Json:
    """Return the schema of the extender's settings that a user of the chart may give."""
    known = Settings.model_json_schema()["properties"]
    properties = {name: _property(known[name]) for name in sorted(known.keys() - OF_EXTENDER)}
    properties["policy"]["enum"] = sorted(POLICIES)
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _property(field: Json) -> Json:
    return _set({name: value for name, value in field.items() if name not in ("title", "default")})


def _set(field: Json) -> Json:
    """Return a field's schema, which for a number takes text as well: `--set` makes 1.3 a text."""
    if field.get("type") != "number":
        return field
    number = {name: value for name, value in field.items() if name != "description"}
    text = {"type": "string", "pattern": "^[0-9]+([.][0-9]+)?$"}
    return {"description": field["description"], "anyOf": [number, text]}


def agent_settings() -> Json:
    """Return the same of the agent's."""
    kinds = {bool: "boolean", int: "integer", float: "number"}
    properties = {}
    for field in sorted(fields(AgentSettings), key=lambda field: field.name):
        if field.name not in OF_AGENT:
            made: Json = {"description": field.metadata["help"], "type": kinds.get(type(field.default), "string")}
            if "least" in field.metadata:
                made["minimum"] = field.metadata["least"]
            properties[field.name] = _set(made)
    return {"type": "object", "additionalProperties": False, "properties": properties}


def schema() -> Json:
    """Return values.schema.json with the settings as the code has them."""
    found: Json = json.loads(SCHEMA.read_text())
    found["definitions"] |= {"extenderSettings": extender_settings(), "agentSettings": agent_settings()}
    return found


def main() -> None:
    """Write what is made; with `package FOLDER`, the chart's archive into that folder."""
    if sys.argv[1:2] == ["package"]:
        print(helm("package", str(CHART), "-d", sys.argv[2]), end="")
        return
    SCHEMA.write_text(json.dumps(schema(), indent=2) + "\n")
    MANIFEST.parent.mkdir(exist_ok=True)
    MANIFEST.write_text(manifest())


if __name__ == "__main__":
    main()
