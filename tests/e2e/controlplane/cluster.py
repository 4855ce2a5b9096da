"""Runs etcd, kube-apiserver and kube-scheduler on loopback for a test.

    with ControlPlane(users=[service_account("tessera", "extender")]) as plane:
        plane.kubectl("apply", "-f", "deploy/rbac.yaml")
        scheduler = plane.start_scheduler(Path("scheduler.yaml"))
        scheduler.pause()

RBAC is real, so the rules of deploy/ are tried and not believed. What a cluster
has and this one lacks: a kubelet (pods are bound but never run) and controllers
(nothing makes the pods of a Deployment, a deleted namespace never goes away,
no service account exists unless it is created).
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import yaml

from tests.e2e.controlplane import commands
from tests.e2e.controlplane.api import JSON, answers, fetch
from tests.e2e.controlplane.binaries import Assets, assets
from tests.e2e.controlplane.guard import Guard
from tests.e2e.controlplane.ports import HeldPort
from tests.e2e.controlplane.process import Process
from tests.e2e.controlplane.users import ADMIN, SCHEDULER, User, kubeconfig, token_file

KUBECTL_SECONDS = 120.0

AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}

# All components but the API server make a certificate at each start and keep it
# in memory; nobody could know it beforehand.
_blind = ssl._create_unverified_context()


class KubectlError(RuntimeError):
    """kubectl ended with an error; `stderr` is what it said."""

    def __init__(self, args: Sequence[str], code: int, stderr: str) -> None:
        super().__init__(f"kubectl {' '.join(args)} ended with {code}: {stderr.strip()}")
        self.code = code
        self.stderr = stderr


def audited(log: Path) -> list[dict[str, Any]]:
    """Return the events of an audit log; what a killed API server left unfinished is none."""
    events = []
    for line in log.read_text().splitlines():
        with suppress(ValueError):
            events.append(json.loads(line))
    return events


class ControlPlane:
    """A control plane that lives as long as the `with` block.

    While it lives: `server` is the URL of the API server, `folder` holds all
    logs, data and kubeconfigs, `etcd` and `apiserver` are the processes.
    Where `audits` is set, `audit` is a file there, in which the API server
    logs what service accounts ask for, and which stays behind.
    Its methods may be called from many threads.
    """

    server: str
    folder: Path
    audit: Path
    etcd: Process
    apiserver: Process

    audits: ClassVar[Path | None] = None

    def __init__(
        self,
        users: Iterable[User] = (),
        *,
        programs: Assets | None = None,
        folder: Path | None = None,
    ) -> None:
        """Describe the control plane; nothing starts before the `with` block.

        `users` are known to the API server besides `admin` (system:masters) and
        `system:kube-scheduler`. `folder` keeps logs and data for a look
        afterwards; without it they go to a temporary one that is removed.
        """
        self._users = {user.name: user for user in (ADMIN, SCHEDULER, *users)}
        self._programs = programs
        self._kept_folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> ControlPlane:
        self.programs = self._programs or assets()
        # Whatever fails on the way up, all that was started before is ended.
        with self._stack as stack:
            self.folder = self._make_folder()
            self._guard = stack.enter_context(Guard(None if self._kept_folder else self.folder))
            self.etcd = self._start_etcd()
            self.apiserver = self._start_apiserver()
            for user in self._users.values():
                self.write_kubeconfig(user.name, user.token)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def kubeconfig(self, user: str = ADMIN.name) -> Path:
        """The kubeconfig file of a user given at construction."""
        return self._kubeconfig_path(self._users[user].name)

    def write_kubeconfig(self, name: str, token: str) -> Path:
        """A kubeconfig file for any token, e.g. one of `kubectl create token`."""
        path = self._kubeconfig_path(name)
        path.write_text(kubeconfig(self.server, self._authority.read_bytes(), token))
        return path

    def kubectl(
        self,
        *args: str,
        user: str = ADMIN.name,
        stdin: str | None = None,
        seconds: float = KUBECTL_SECONDS,
    ) -> str:
        """Run kubectl as a user; what it printed, or KubectlError."""
        cache = self.folder / "kubectl-cache"
        done = subprocess.run(
            commands.kubectl(self.programs.kubectl, self.kubeconfig(user), cache, args),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=os.environ | {"KUBECTL_KUBERC": "false"},
            check=False,
        )
        if done.returncode:
            raise KubectlError(args, done.returncode, done.stderr)
        return done.stdout

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        user: str = ADMIN.name,
        content_type: str = JSON,
    ) -> str:
        """One request to the API server as a user; the reply's text, or ApiError.

        A few milliseconds where kubectl takes a tenth of a second: the way to
        create a thousand objects.
        """
        return fetch(
            self.server + path,
            method=method,
            body=body,
            content_type=content_type,
            token=self._users[user].token,
            context=self._trust,
        )

    def start_scheduler(self, configuration: Path, *flags: str, name: str = "kube-scheduler") -> Process:
        """Start a kube-scheduler and wait until it is ready.

        `configuration` is a KubeSchedulerConfiguration file. Where it is silent,
        the connection is that of `system:kube-scheduler` and there is no leader
        election. Several may run at a time under different names.
        """
        port = self._hold_port()
        credentials = self.kubeconfig(SCHEDULER.name)
        written = yaml.safe_load(configuration.read_text())
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(commands.scheduler_configuration(written, credentials)))
        program = self.programs.kube_scheduler
        command = commands.scheduler(program, path, port, credentials)
        url = f"https://{port}"
        return self.start(name, [*command, *flags], url, lambda: _answers_blindly(f"{url}/readyz"))

    def start_controllers(self, *names: str, name: str = "kube-controller-manager") -> Process:
        """Start some controllers, e.g. `namespace-controller`, and wait until they run.

        Only those named: the others would act on nodes that no kubelet reports.
        """
        port = self._hold_port()
        url = f"https://{port}"
        command = commands.controllers(
            self.programs.kube_controller_manager, names, port, self.kubeconfig(), self._key
        )
        return self.start(name, command, url, lambda: _answers_blindly(f"{url}/healthz"))

    def scrape(self, process: Process, path: str = "/metrics") -> str:
        """What a kube component tells about itself, asked as `admin`."""
        return fetch(process.url + path, token=ADMIN.token, context=_blind)

    def _make_folder(self) -> Path:
        if self._kept_folder is not None:
            self._kept_folder.mkdir(parents=True, exist_ok=True)
            return self._kept_folder.absolute()
        folder = Path(tempfile.mkdtemp(prefix="tessera-controlplane-"))
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder

    def _start_etcd(self) -> Process:
        client, peer = self._hold_port(), self._hold_port()
        command = commands.etcd(self.programs.etcd, self.folder / "etcd", client, peer)
        url = f"http://{client}"
        return self.start("etcd", command, url, lambda: answers(f"{url}/health"))

    def _start_apiserver(self) -> Process:
        port = self._hold_port()
        self.server = f"https://{port}"
        tokens = self.folder / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text(token_file(self._users.values()))
        command = commands.apiserver(
            self.programs.kube_apiserver, self.etcd.url, port, self._authority.parent, tokens
        )
        if self.audits is not None:
            self.audit = self.audits / f"{self.folder.name}.log"
            policy = self.folder / "audit.yaml"
            policy.write_text(yaml.safe_dump(AUDIT))
            command += [f"--audit-policy-file={policy}", f"--audit-log-path={self.audit}"]
        return self.start("kube-apiserver", command, self.server, self._apiserver_ready)

    def _apiserver_ready(self) -> bool:
        # The key is written after the certificate, so then that is complete. The
        # default namespace is made shortly after the server calls itself ready,
        # and nearly every test needs it.
        return self._key.exists() and all(
            answers(self.server + path, token=ADMIN.token, context=self._trust)
            for path in ("/readyz", "/api/v1/namespaces/default")
        )

    def start(self, name: str, command: Sequence[str], url: str, ready: Callable[[], bool]) -> Process:
        """Start a program that lives as long as the control plane, and wait until it is ready."""
        process = Process(name, command, self.folder / f"{name}.log", url, ready, self._guard)
        # Nobody needs the data afterwards, and a graceful end takes seconds.
        self._stack.callback(process.kill)
        process.start()
        return process

    def _hold_port(self) -> HeldPort:
        return self._stack.enter_context(HeldPort())

    def _kubeconfig_path(self, name: str) -> Path:
        return self.folder / f"{name.replace(':', '.')}.kubeconfig"

    @property
    def _authority(self) -> Path:
        """The serving certificate that kube-apiserver makes, its CA included."""
        return self.folder / "apiserver" / "apiserver.crt"

    @property
    def _key(self) -> Path:
        return self._authority.with_suffix(".key")

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self._authority))


def _answers_blindly(url: str) -> bool:
    return answers(url, context=_blind)
