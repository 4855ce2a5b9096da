"""Lists the licences of what an image carries: `python deploy/images/licences.py extender`.

Reads the lock file through `uv export`, and each package's own metadata where this environment has it.
"""

import subprocess
import sys
from importlib import metadata
from pathlib import Path


def packages(extra: str) -> list[str]:
    """Return the names of the packages that the image of this extra carries, without the project itself."""
    uv = Path(sys.executable).parent / "uv"
    command = [str(uv), "export", "--frozen", "--no-dev", "--no-emit-project", "--no-hashes", "--no-annotate"]
    told = subprocess.run([*command, "--no-header", "--extra", extra], capture_output=True, text=True, check=True)
    lines = [line.partition(";") for line in told.stdout.splitlines() if "==" in line]
    return sorted({name.partition("==")[0].strip() for name, _, marker in lines if "win32" not in marker})


def licence(name: str) -> str:
    """Return what a package says its licence is; "not told" if it says nothing."""
    said = metadata.metadata(name)
    classified = [line.rpartition(" :: ")[2] for line in said.get_all("Classifier", []) if "License ::" in line]
    short = (said.get("License") or "").strip()
    return said.get("License-Expression") or ", ".join(classified) or short.partition("\n")[0] or "not told"


def main() -> None:
    """Print one package a line: name, version, licence."""
    for name in packages(sys.argv[1]):
        try:
            print(f"{name}\t{metadata.version(name)}\t{licence(name)}")
        except metadata.PackageNotFoundError:  # of another platform
            print(f"{name}\t-\tnot installed here")


if __name__ == "__main__":
    main()
