"""Who may knock at the API server: static tokens and kubeconfig files.

Static tokens, because they need no certificates and can carry any name: that of
a component (`system:kube-scheduler`) or of a service account
(`system:serviceaccount:NAMESPACE:NAME`), so that the RBAC rules of deploy/ are
tried with the very subjects they name.
"""

from __future__ import annotations

import csv
import io
import secrets
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field

import yaml


@dataclass(frozen=True, slots=True)
class User:
    """A name that the API server knows by a token, and its groups.

    Every user is in `system:authenticated` as well: the API server adds it.
    """

    name: str
    groups: tuple[str, ...] = ()
    token: str = field(default_factory=secrets.token_urlsafe, repr=False)


ADMIN = User("admin", ("system:masters",))
SCHEDULER = User("system:kube-scheduler")


def service_account(namespace: str, name: str) -> User:
    """A user whom RBAC takes for the service account NAMESPACE/NAME."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
    return User(f"system:serviceaccount:{namespace}:{name}", groups)


def token_file(users: Iterable[User]) -> str:
    """The users in the form of kube-apiserver's --token-auth-file."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for user in users:
        rows.writerow([user.token, user.name, f"uid-{user.name}", ",".join(user.groups)])
    return text.getvalue()


def kubeconfig(server: str, authority: bytes, token: str) -> str:
    """A kubeconfig for one token; `authority` is the PEM text of the CA.

    Everything is inside the text, so that the file may be copied anywhere.
    """
    cluster = {
        "server": server,
        "certificate-authority-data": b64encode(authority).decode(),
    }
    context = {"cluster": "test", "user": "test", "namespace": "default"}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": context}],
            "current-context": "test",
        }
    )
