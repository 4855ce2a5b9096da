"""AdmissionReview (admission.k8s.io/v1), and what admission looks at in a pod besides `extender/wire.py`."""

from typing import Any

import msgspec
from msgspec import Struct, field

from extender.wire import Meta, Requirements


class Kind(Struct):
    group: str = ""
    kind: str = ""


class Asked(Struct, rename="camel"):
    """The request of an AdmissionReview. The objects are null where the operation has none."""

    uid: str
    kind: Kind = field(default_factory=Kind)
    sub_resource: str | None = None
    operation: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")


class Review(Struct):
    request: Asked


class EnvVar(Struct, rename="camel"):
    name: str = ""
    value: str | None = None
    value_from: dict[str, Any] | None = None


class AdmittedContainer(Struct):
    name: str = ""
    env: list[EnvVar] | None = None
    resources: Requirements | None = None


class AdmittedSpec(Struct, rename="camel"):
    containers: list[AdmittedContainer] | None = None
    init_containers: list[AdmittedContainer] | None = None
    ephemeral_containers: list[AdmittedContainer] | None = None
    scheduler_name: str | None = None
    runtime_class_name: str | None = None


class AdmittedPod(Struct):
    metadata: Meta = field(default_factory=Meta)
    spec: AdmittedSpec = field(default_factory=AdmittedSpec)


class Status(Struct):
    code: int
    message: str


class Answer(Struct, rename="camel", omit_defaults=True):
    uid: str
    allowed: bool
    status: Status | None = None
    patch: bytes | None = None  # in base64, as msgspec writes bytes
    patch_type: str | None = None


class Reply(Struct, rename="camel"):
    response: Answer
    api_version: str = "admission.k8s.io/v1"
    kind: str = "AdmissionReview"


review_decoder = msgspec.json.Decoder(Review)
admitted_decoder = msgspec.json.Decoder(AdmittedPod | None)
