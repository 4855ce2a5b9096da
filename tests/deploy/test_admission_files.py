"""The admission policies and webhooks as files: they agree with the contract, with the code, and with each other."""

import re
from pathlib import Path
from typing import Any

import yaml

from contract import names
from extender.delivery import NRI, VISIBLE
from extender.request import MOST_CARDS
from scoring.policies import POLICIES
from tests.deploy.test_deploy import DEPLOY, EXTENDER, documents
from tests.extender.test_request import REFUSALS

REQUESTS = (DEPLOY.parent / "docs/requests.md").read_text()
FILES = sorted((DEPLOY / "admission").glob("*.yaml"))


def plain(text: str) -> str:
    """Return a text with every run of blanks as one."""
    return " ".join(text.split())


def conditions(path: Path) -> list[str]:
    """Return the match conditions of a file, blanks apart."""
    found: list[str] = []
    for document in yaml.safe_load_all(path.read_text()):
        holders: list[dict[str, Any]] = [document.get("spec") or {}, *document.get("webhooks", [])]
        found += [plain(c["expression"]) for holder in holders for c in holder.get("matchConditions", [])]
    return found


def test_who_speaks_of_us_is_said_alike_everywhere() -> None:
    """One condition in the webhooks and the policies, with the names of the contract."""
    by_file = {path.name: conditions(path) for path in FILES}
    one, other = by_file["webhooks.yaml"]
    assert one == other == by_file["request.yaml"][0] == by_file["devices.yaml"][0]
    assert by_file["namespace.yaml"] == [f"!( {one} )"]
    resources = names.Resources()
    said = ", ".join(f'"{name}"' for name in (resources.memory, resources.utilization, resources.share))
    assert f"name in [{said}]" in one
    assert f'key.startsWith("{names.PREFIX}") && !(key in ["{names.RETRY}", "{names.LEADER}"])' in one


def test_webhooks_hold_up_nobody_else() -> None:
    """Fail, five seconds, early among the mutating ones, asked again, and a configuration that the code knows."""
    for configuration in documents("admission/webhooks.yaml")[1:]:
        assert configuration["metadata"]["name"] == names.WEBHOOKS
        (webhook,) = configuration["webhooks"]
        assert (webhook["failurePolicy"], webhook["sideEffects"], webhook["timeoutSeconds"]) == ("Fail", "None", 5)
        assert webhook["clientConfig"]["service"] | {"path": ""} == {
            "namespace": "tessera-system",
            "name": "tessera-webhook",
            "path": "",
        }
    assert documents("admission/webhooks.yaml")[1]["webhooks"][0]["reinvocationPolicy"] == "IfNeeded"


def test_policies_know_the_names_of_the_code() -> None:
    """Keys, policies, the greatest count, how devices are named, and who the extender is."""
    request, devices = ((DEPLOY / f"admission/{name}.yaml").read_text() for name in ("request", "devices"))
    keys = "|".join(key.removeprefix(names.PREFIX) for key in names.PER_CONTAINER)
    assert f"tessera[.]gpu/({keys})" in request
    for key in names.PER_POD:
        assert f'"{key}"' in request
    assert "[" + ", ".join(f'"{name}"' for name in sorted(POLICIES)) + "]" in request
    assert f"<= {MOST_CARDS}" in request
    assert f'"{VISIBLE}"' in devices
    assert NRI.startswith("nvidia.cdi.k8s.io/")
    assert 'key.startsWith("nvidia.cdi.k8s.io/")' in devices
    assert EXTENDER in devices
    assert f"metadata.annotations['{names.DEVICES}.\" + c.name" in devices
    for long in ("a" * 56, "a" * 63):
        assert names.devices_key(long).startswith(f"{names.DEVICES}.{long[:40]}-")


def test_the_quota_looks_at_every_way_to_take_a_card_without_its_memory() -> None:
    """By number or by utilization alone: in who is looked at, and in whose memory is missed."""
    policy = documents("admission/quota.yaml")[0]["spec"]
    (unsaid,) = [v["expression"] for v in policy["variables"] if v["name"] == "unsaid"]
    resources = names.Resources()
    takes = (
        f'["{resources.share}", "{resources.utilization}"].exists(name,'
        ' quantity(c.?resources.?limits[?name].orValue("0")).isGreaterThan(quantity("0")))'
    )
    for expression in (policy["matchConditions"][0]["expression"], unsaid):
        assert takes in plain(expression)


def test_every_policy_denies() -> None:
    """Each has a binding of its name, denies, and refuses if it cannot be evaluated."""
    for path in FILES:
        policies = [d for d in documents(f"admission/{path.name}") if d["kind"] == "ValidatingAdmissionPolicy"]
        bindings = [d for d in documents(f"admission/{path.name}") if d["kind"] == "ValidatingAdmissionPolicyBinding"]
        assert [p["metadata"]["name"] for p in policies] == [b["spec"]["policyName"] for b in bindings]
        assert all(p["spec"]["failurePolicy"] == "Fail" for p in policies)
        assert all(b["spec"]["validationActions"] == ["Deny"] for b in bindings)


def test_the_page_has_every_refusal() -> None:
    """Word by word, and none that the code does not know."""
    table = REQUESTS.split("## Not the request")[0]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", table, re.MULTILINE)[1:]
    assert rows == [(name, sentence.replace("|", "&#124;")) for name, _, sentence in REFUSALS]


def test_the_page_has_the_sentences_of_policies_and_webhooks() -> None:
    """Each begins, or goes on, in a file as it does on the page."""
    code = "".join(path.read_text() for path in FILES) + (DEPLOY.parent / "extender/webhook.py").read_text()
    code = plain(re.sub(r'"\s*\+?\s*f?"', "", code)).replace("{MOST_NRI}", "53")
    rows = re.findall(r"^\| .+? \| (.+) \|$", REQUESTS.split("## Not the request")[1], re.MULTILINE)
    sentences = [row for row in rows if row != "sentence"]
    assert len(sentences) == 12
    for sentence in sentences:
        *_, longest = sorted(
            re.split(r"'[^']*'|tessera\.gpu/memory cannot|cdi\.k8s\.io/x| 5[34] ?|[{].*?[}]|/spec/\S+", sentence),
            key=len,
        )
        assert longest.strip() in code, sentence


def test_rights_for_the_certificate_are_for_two_objects_by_name() -> None:
    """The Secret of the settings and the webhooks' configurations; to create a Secret has no name."""
    roles = {d["kind"]: d["rules"] for d in documents("rbac/admission.yaml") if "rules" in d}
    assert [rule.get("resourceNames") for rule in roles["Role"]] == [None, ["tessera-webhook"]]
    assert [rule["verbs"] for rule in roles["Role"]] == [["create"], ["get", "update"]]
    (rule,) = roles["ClusterRole"]
    assert (rule["resourceNames"], rule["verbs"]) == ([names.WEBHOOKS], ["get", "patch"])
    (view,) = documents("rbac/users.yaml")
    assert view["rules"] == [{"apiGroups": [names.GROUP], "resources": [names.PLURAL], "verbs": ["get", "list"]}]
