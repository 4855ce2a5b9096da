"""Has the API servers' own OpenAPI documents of some Kubernetes versions, and says where an object departs from them.

The documents lie in the Go module of Kubernetes. They know which fields there are, which must be there and of what
type, not which values a field may have: that takes a running server, which the end-to-end tests have for one version.

`python -m tests.deploy.schemas` downloads those of every version and prints where they are.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from jsonschema import Draft4Validator, ValidationError, validators

from tests.deploy import programs
from tests.e2e.controlplane import binaries

MODULE: Final = "k8s.io/kubernetes"
# By the version: the checksum that go.sum would have of its module.
SUMS: Final = {
    "1.34.4": "h1:Yy6R4QB8C9kJPp25GFqEvX5XQwY5qzKeqD0Xx6oAcmk=",
    "1.35.4": "h1:o/8dBC/pHVpYoGV4OAIytAlNPZbdYVTXJHoYvXC4qzM=",
    "1.36.3": "h1:qDQdoMiluAE2Eab6Fa52YV+WjiGz9mZFFoagEA6cI+o=",
    "1.37.2": "h1:A2VDEiObzkYqFTKhSsn0ZEb0RlLEXpHWj93gi2HqEwE=",
}
GO: Final = {**programs.GO, "GOFLAGS": "-mod=mod -modcacherw"}  # read-only folders could not be removed
# Any of these in the schema of an object lets fields in that `properties` does not name.
OPEN: Final = {"additionalProperties", "x-kubernetes-preserve-unknown-fields"}
DEFINED: Final = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"
Json = dict[str, Any]


def openapi(version: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return where a version's documents are: downloaded once, and kept in the user's cache.

    Takes some seconds the first time. Raises MissingComponentError if they cannot be had, or are not the pinned ones.
    """
    kept = binaries.cache(environment).parent / "schemas" / f"v{version}"
    if kept.is_dir():
        return kept
    go = binaries._go(environment)
    kept.parent.mkdir(parents=True, exist_ok=True)
    with binaries._alone(kept.with_name(f"{kept.name}.lock")):
        if not kept.is_dir():
            _download(go, version, kept, environment)
    return kept


def _download(go: Path, version: str, kept: Path, environment: Mapping[str, str]) -> None:
    """Download the module beside `kept`, move its documents there in one step, and remove the rest."""
    print(f"downloading the API schemas of Kubernetes {version}: 20 MB, once", file=sys.stderr, flush=True)
    for left in kept.parent.glob(f"{kept.name}.part-*"):  # by interrupted downloads
        shutil.rmtree(left, ignore_errors=True)
    with TemporaryDirectory(prefix=f"{kept.name}.part-", dir=kept.parent) as half:
        done = subprocess.run(
            [str(go), "mod", "download", "-json", f"{MODULE}@v{version}"],
            cwd=half,
            env={**environment, **GO, "GOMODCACHE": half},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = (done.stderr + done.stdout)[-3000:]
            raise binaries.MissingComponentError(f"{MODULE} v{version} could not be downloaded:\n{said}")
        told = json.loads(done.stdout)
        if told["Sum"] != SUMS[version]:
            raise binaries.MissingComponentError(
                f"{MODULE} v{version} was downloaded with the checksum {told['Sum']}, where"
                f" {Path(__file__).name} pins {SUMS[version]}: it is not used"
            )
        Path(told["Dir"], "api/openapi-spec/v3").rename(kept)


def _properties(validator: Any, known: Json, value: Any, schema: Json) -> Iterator[ValidationError]:
    """Check an object's fields as ever, and refuse those that the schema neither names nor leaves open."""
    if validator.is_type(value, "object") and not schema.keys() & OPEN:
        for name in sorted(value.keys() - known.keys()):
            yield ValidationError(f"there is no field {name}")
    yield from Draft4Validator.VALIDATORS["properties"](validator, known, value, schema)


Strict: Final = validators.extend(Draft4Validator, {"properties": _properties})


def faults(version: str, made: Json) -> list[str]:
    """Return what an API server of this version would not know in an object, or miss: a sentence each, with the path.

    Empty if the object is in order. Raises MissingComponentError as `openapi` does.
    """
    name = f"{made.get('kind')} {made.get('metadata', {}).get('name')}"
    schema = _schema(openapi(version), str(made.get("apiVersion")), str(made.get("kind")))
    if schema is None:
        return [f"{name}: $.kind: Kubernetes {version} serves none of {made.get('apiVersion')}"]
    return [f"{name}: {error.json_path}: {error.message}" for error in Strict(schema).iter_errors(made)]


def _schema(documents: Path, api: str, kind: str) -> Json | None:
    """Return the schema of a kind as its API has it, None if there is none."""
    group, _, version = api.rpartition("/")
    # The documents are of a server with everything switched on, where alpha and beta are off unless asked for.
    if not re.fullmatch(r"v\d+", version):
        return None
    path = documents / ("__".join(("apis", group, version) if group else ("api", version)) + "_openapi.json")
    document = _document(path) if path.is_file() else {"components": {"schemas": {}}}
    wanted = {"group": group, "version": version, "kind": kind}
    for name, schema in document["components"]["schemas"].items():
        if wanted in schema.get("x-kubernetes-group-version-kind", ()):
            return {"$ref": f"#/components/schemas/{name}", **document}
    return None


@cache
def _document(path: Path) -> Json:
    found: Json = json.loads(path.read_text())
    schemas = found["components"]["schemas"]
    if f"{DEFINED}OrArray" in schemas:  # of which the document says nothing, and the server takes no array
        schemas[f"{DEFINED}OrArray"] = {"$ref": f"#/components/schemas/{DEFINED}"}
    return found


if __name__ == "__main__":
    for version in SUMS:
        print(f"{version:10} {openapi(version)}")
