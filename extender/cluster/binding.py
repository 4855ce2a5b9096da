"""What may travel on a Binding: the API server does not look, and refuses every later update of the pod instead."""

import re
from typing import Any, Final

from contract.names import MAX_NAME
from extender.cluster import Binding, NotDone

# The API server allows a pod 256 KiB of annotations and does not count those of a Binding; beyond it every
# later update of the pod fails, so a quarter is left to what the pod has already.
MAX_ANNOTATIONS: Final = 192 * 1024

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME = r"[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?"
_KEY: Final = re.compile(rf"((?P<prefix>{_LABEL}(\.{_LABEL})*)/)?(?P<name>{_NAME})")


def check_annotations(annotations: dict[str, str]) -> None:
    """Refuse what the API server would store on a Binding, and then refuse at every later update of the pod.

    Raises
    ------
    NotDone
    """
    for key in annotations:
        match = _KEY.fullmatch(key)
        if match is None or len(match["prefix"] or "") > 253 or len(match["name"]) > MAX_NAME:
            raise NotDone(f"The annotation key {key[:100]!r} is not one that Kubernetes allows.")
    size = sum(len(text.encode(errors="replace")) for pair in annotations.items() for text in pair)
    if size > MAX_ANNOTATIONS:
        raise NotDone(f"The annotations have {size} bytes together; {MAX_ANNOTATIONS} are allowed.")


def body_of(binding: Binding) -> dict[str, Any]:
    """Return the Binding as the API server takes it."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "namespace": binding.namespace,
            "name": binding.pod,
            "uid": binding.uid,
            "annotations": binding.annotations,
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": binding.node},
    }
