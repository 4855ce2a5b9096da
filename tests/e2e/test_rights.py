"""Every right that Tessera's accounts have is one that something in all these tests has used.

The rules are those that the chart makes and those that are shipped beside it; the API servers' audit logs tell what
was used.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from tests.deploy.rendered import template
from tests.e2e.controlplane.cluster import audited
from tests.e2e.scene import DEPLOY
from tests.e2e.test_chart import EVERYTHING, EXISTING

pytestmark = pytest.mark.e2e

Json = dict[str, Any]
SCHEDULER: Final = "kube-scheduler"  # in the extender's pod, under the extender's account
PROGRAMS: Final = ("tessera-extender", "tessera-agent", SCHEDULER)  # a test that tries what an account may is not one

# Without these the API server refuses what the log then shows under another name.
UNSEEN: Final = {
    # A patch that creates has to be allowed both, and is logged as a patch.
    ("tessera-agent", "create", "tessera.gpu", "gpunodes"),
}


class Right(NamedTuple):
    """What an account may do, or did. A rule's `namespace` and `name` are "" where they do not matter."""

    account: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str

    def covers(self, did: "Right") -> bool:
        """Say whether this rule allows what was done."""
        where = self.namespace in ("", did.namespace) and self.name in ("", did.name)
        return where and self[:4] == did[:4]


def used(folder: Path) -> set[Right]:
    """Return what our programs did, by the audit logs of a folder."""
    return {right for log in folder.glob("*.log") for event in audited(log) if (right := asked(event)) is not None}


def asked(event: Json) -> Right | None:
    """Return what an event of an audit log tells of; None: nothing that a rule on resources is about."""
    reference = event.get("objectRef", {})
    if "resource" not in reference or not event["userAgent"].startswith(PROGRAMS):
        return None
    account = event["user"]["username"].rpartition(":")[2]
    resource = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
    return Right(
        SCHEDULER if event["userAgent"].startswith(SCHEDULER) else account,
        event["verb"],
        reference.get("apiGroup", ""),
        resource,
        reference.get("namespace", ""),
        reference.get("name", ""),
    )


def granted() -> set[Right]:
    """Return the rights of every account, by the chart's roles in both layouts and those shipped beside it."""
    made = [*template(*EVERYTHING), *template(*EXISTING, *EVERYTHING)]
    for path in (DEPLOY / "rbac").glob("*.yaml"):
        made += yaml.safe_load_all(path.read_text())
    roles = {_key(one): one for one in made if one["kind"] in ("Role", "ClusterRole")}
    rights = set()
    for binding in [one for one in made if "roleRef" in one]:
        name = binding["roleRef"]["name"]
        role = roles.get(_key(binding["roleRef"] | {"metadata": binding["metadata"] | {"name": name}}))
        if role is not None:
            for subject in binding["subjects"]:
                rights |= set(_rights(SCHEDULER if name == "tessera-scheduler" else subject["name"], role))
    return rights


def _key(role: Json) -> tuple[str, str, str]:
    """Return a role's kind, namespace if it has one, and name."""
    where = role["metadata"]["namespace"] if role["kind"] == "Role" else ""
    return (role["kind"], where, role["metadata"]["name"])


def _rights(account: str, role: Json) -> Iterator[Right]:
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    for name in rule.get("resourceNames", [""]):
                        yield Right(account, verb, group, resource, role["metadata"].get("namespace", ""), name)


def test_every_right_was_used(audits: Path) -> None:
    """In all of these tests together; what nobody needs, nobody has."""
    did = used(audits)
    rights = granted()
    print(f"{len(rights)} rights, {len(did)} different requests in {len(list(audits.glob('*.log')))} logs")
    assert len(rights) > 30
    unused = {right for right in rights if not any(right.covers(one) for one in did)}
    assert {right[:4] for right in unused} == UNSEEN
