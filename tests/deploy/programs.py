"""Finds or builds helm and promtool for the tests of deploy/, as the control plane's programs are."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.e2e.controlplane import binaries

FOLDER: Final = Path(__file__).parent / "tools"
PACKAGES: Final = {
    "helm": "helm.sh/helm/v3/cmd/helm",
    "promtool": "github.com/prometheus/prometheus/cmd/promtool",
}
TAGS: Final = {"promtool": ("-tags", "remove_all_sd")}  # a third of the build: it finds no targets here
GO: Final = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": "-buildvcs=false"}


def tool(name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the program: built once from a Go module in tools/, and kept in the user's cache.

    Takes minutes the first time. Raises MissingComponentError if it cannot be built.
    """
    module = FOLDER / name
    digest = hashlib.sha256((module / "go.mod").read_bytes() + (module / "go.sum").read_bytes()).hexdigest()[:12]
    program = binaries.cache(environment).parent / "tools" / f"{name}-{digest}"
    if program.exists():
        return program
    go = binaries._go(environment)
    program.parent.mkdir(parents=True, exist_ok=True)
    with binaries._alone(program.with_suffix(".lock")):
        if not program.exists():
            _build(go, name, program, environment)
    return program


def _build(go: Path, name: str, program: Path, environment: Mapping[str, str]) -> None:
    print(f"building {name} with {go}: some minutes, once", file=sys.stderr, flush=True)
    half = program.with_suffix(f".part-{os.getpid()}")
    command = [str(go), "build", "-trimpath", "-mod=readonly", *TAGS.get(name, ()), "-ldflags", "-s -w"]
    done = subprocess.run(
        [*command, "-o", str(half), PACKAGES[name]],
        cwd=FOLDER / name,
        env={**environment, **GO},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise binaries.MissingComponentError(f"{name} could not be built:\n{done.stderr[-3000:]}")
    shutil.move(half, program)


if __name__ == "__main__":
    for name in PACKAGES:
        print(f"{name:10} {tool(name)}")
