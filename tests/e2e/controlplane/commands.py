"""The command line of each component, and why each flag is there.

Plain values in, plain values out; nothing is started and no file is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.e2e.controlplane.ports import LOOPBACK, HeldPort

# ServiceAccount wants a default service account in every namespace, and
# TaintNodesByCondition taints every new node as not ready; the controllers that
# make the one and remove the other do not run here.
NEEDING_CONTROLLERS = "ServiceAccount,TaintNodesByCondition"


def etcd(program: Path, data: Path, client: HeldPort, peer: HeldPort) -> list[str]:
    """A single etcd member that does not wait for the disk."""
    return [
        str(program),
        f"--data-dir={data}",
        f"--listen-client-urls=http://{client}",
        f"--advertise-client-urls=http://{client}",
        f"--listen-peer-urls=http://{peer}",
        f"--initial-advertise-peer-urls=http://{peer}",
        f"--initial-cluster=default=http://{peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def apiserver(program: Path, etcd_url: str, port: HeldPort, certificates: Path, tokens: Path) -> list[str]:
    """An API server with real RBAC that takes static tokens.

    It makes its own serving certificate in `certificates`, a self-signed CA
    included. That key signs service account tokens too, so that none has to be
    kept in the repository or made with another tool.
    """
    key = certificates / "apiserver.key"
    return [
        str(program),
        f"--etcd-servers={etcd_url}",
        f"--bind-address={LOOPBACK}",
        f"--advertise-address={LOOPBACK}",
        f"--secure-port={port.number}",
        f"--cert-dir={certificates}",
        f"--token-auth-file={tokens}",
        "--authorization-mode=Node,RBAC",
        f"--disable-admission-plugins={NEEDING_CONTROLLERS}",
        f"--service-account-issuer=https://{port}",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--service-cluster-ip-range=10.0.0.0/16",
        # A loopback address may not stand in the endpoints of "kubernetes".
        "--endpoint-reconciler-type=none",
        "--allow-privileged=true",
        # Many clients at once are the point of some tests; their limits are not.
        "--max-requests-inflight=4000",
        "--max-mutating-requests-inflight=2000",
    ]


def scheduler(program: Path, configuration: Path, port: HeldPort, credentials: Path) -> list[str]:
    """A kube-scheduler that lets the API server say who may read its metrics."""
    return [
        str(program),
        f"--config={configuration}",
        f"--authentication-kubeconfig={credentials}",
        f"--authorization-kubeconfig={credentials}",
        f"--bind-address={LOOPBACK}",
        f"--secure-port={port.number}",
    ]


def controllers(program: Path, names: Sequence[str], port: HeldPort, credentials: Path, key: Path) -> list[str]:
    """A kube-controller-manager with the named controllers and no others."""
    return [
        str(program),
        f"--controllers={','.join(names)}",
        f"--kubeconfig={credentials}",
        f"--authentication-kubeconfig={credentials}",
        f"--authorization-kubeconfig={credentials}",
        f"--service-account-private-key-file={key}",
        f"--bind-address={LOOPBACK}",
        f"--secure-port={port.number}",
        "--leader-elect=false",
    ]


def scheduler_configuration(written: dict[str, Any], credentials: Path) -> dict[str, Any]:
    """The configuration as written, completed where it is silent.

    Silent about the connection: that of `credentials`. Silent about leader
    election: none, since a restart would have to wait for the old lease.
    """
    connection = {"kubeconfig": str(credentials)} | written.get("clientConnection", {})
    election = {"leaderElect": False} | written.get("leaderElection", {})
    return written | {"clientConnection": connection, "leaderElection": election}


def kubectl(program: Path, kubeconfig: Path, cache: Path, args: Sequence[str]) -> list[str]:
    """kubectl as one user, leaving the developer's own files alone."""
    return [str(program), f"--kubeconfig={kubeconfig}", f"--cache-dir={cache}", *args]
