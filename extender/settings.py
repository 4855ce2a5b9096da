"""Settings: flags, then the environment (`TESSERA_*`), then a YAML file, become one frozen object here.

Nobody else reads the environment.
"""

import argparse
import ipaddress
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from contract.names import AGENTS, Resources
from extender.delivery import Mode
from extender.node import Rules
from scoring.policies import DEFAULT, POLICIES

PREFIX: Final = "TESSERA_"


class Settings(BaseModel):
    """What an administrator may set; the descriptions are the flags' help."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cluster: Path | None = Field(
        None, description="serve this YAML file of Node, GPUNode and Pod objects, with no API server"
    )
    kubeconfig: Path | None = Field(
        None, description="kubeconfig file; default: the pod's service account, else ~/.kube/config"
    )
    context: str | None = Field(None, description="context of the kubeconfig")
    host: str = Field("127.0.0.1", description="address to listen on; beyond loopback callers need a certificate")
    port: int = Field(8580, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    probe_port: int | None = Field(
        None, ge=0, le=65535, description="plain port, on every address, for probes and metrics alone"
    )
    tls_cert: Path | None = Field(None, description="PEM file of the certificate to serve the verbs with")
    tls_key: Path | None = Field(None, description="PEM file of its key")
    tls_client_ca: Path | None = Field(None, description="PEM file of the CAs whose clients may call the verbs")
    tls_client_names: str = Field(
        "", description="which of their clients may: common or alternative names, with commas between"
    )
    trust_network: bool = Field(False, description="serve whoever reaches the port, on any address")
    lead: Literal["none", "lease", "follow"] = Field(
        "none", description="none: the only replica; lease: one of several; follow: beside a kube-scheduler"
    )
    lease_name: str = Field("", description="Lease to hold (tessera-extender) or to follow (kube-scheduler)")
    lease_namespace: str = Field("", description="its namespace; default: the pod's, or kube-system to follow")
    lease_seconds: int = Field(
        15, ge=3, le=600, description="a leader that was silent for so long may be replaced; the same on all replicas"
    )
    pod_name: str = Field("", description="this pod's name, by the downward API; a replica needs it")
    pod_namespace: str = Field("", description="this pod's namespace, by the downward API; a replica needs it")
    prefix: str = Field("", description="path in front of the verbs, such as /scheduler")
    policy: str = Field(DEFAULT, description="how to pack: " + ", ".join(sorted(POLICIES)))
    scores: Literal["decisive", "cooperative"] = Field(
        "decisive",
        description="decisive: the best node wins against any plugin; cooperative: scores are spread over 0 to 10",
    )
    overcommit: float = Field(
        1.0,
        ge=1,
        le=10,
        description="compute promised per card, as a factor; a node's annotation overrides it",
    )
    sharers: int = Field(48, ge=1, le=512, description="most containers on one card")
    headroom_mib: int = Field(0, ge=0, description="memory kept free on every card, in MiB")
    boundary: Literal["none", "namespace"] = Field(
        "none", description="who may share a card: pods of all namespaces, or of one alone"
    )
    allow_whole_gpus: bool = Field(False, description="also use nodes that advertise nvidia.com/gpu")
    stale_seconds: float = Field(
        30, gt=0, description="answer from the last state for so long after the API server fell silent"
    )
    silent_seconds: float = Field(
        90, gt=0, description="do not offer the cards of a node whose agent was silent for so long"
    )
    agent_namespace: str = Field(AGENTS, description="namespace of the agents' heartbeats")
    bind_seconds: float = Field(
        3.5, gt=0, description="give up a bind after so long; keep it below the scheduler's httpTimeout"
    )
    evict: Literal["never", "dry-run", "enforce"] = Field(
        "never",
        description="make room for a pod that only fragmentation keeps out: dry-run tells by events, enforce evicts",
    )
    max_body_mib: int = Field(128, ge=1, description="largest request body")
    memory_resource: str = Field(Resources().memory, description="extended resource for GPU memory")
    utilization_resource: str = Field(Resources().utilization, description="extended resource for GPU compute")
    share_resource: str = Field(Resources().share, description="extended resource for a place on a card")
    delivery: Mode = Field(
        "env", description="how containers get to their cards: env, cdi, or none if somebody else sees to it"
    )
    scheduler_name: str = Field("", description="scheduler of pods that ask for GPUs and name none")
    runtime_class: str = Field("", description="RuntimeClass of pods that ask for GPUs and name none, such as nvidia")
    webhook_port: int | None = Field(
        None, ge=0, le=65535, description="port, on every address, for admission webhooks; default: none"
    )
    webhook_certificates: Literal["self-signed", "files"] = Field(
        "self-signed", description="self-signed: made here and kept in a Secret; files: webhook_cert and webhook_key"
    )
    webhook_cert: Path | None = Field(None, description="PEM file of the webhooks' certificate")
    webhook_key: Path | None = Field(None, description="PEM file of its key")
    webhook_secret: str = Field("tessera-webhook", description="Secret, in the pod's namespace, to keep it in")
    webhook_names: str = Field(
        "", description="names for it, with commas between; default: the Service tessera-webhook's"
    )
    page: bool = Field(False, description="serve the live page, /page, where the metrics are")
    seed: int = Field(0, ge=0, description="seed of the random policy")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug, info, warning or error"
    )

    @field_validator("policy")
    @classmethod
    def _known_policy(cls, value: str) -> str:
        if value not in POLICIES:
            raise ValueError(f"must be one of {', '.join(sorted(POLICIES))}")
        return value

    @field_validator("prefix")
    @classmethod
    def _a_path(cls, value: str) -> str:
        if not re.fullmatch(r"(/[A-Za-z0-9._-]+)*", value):
            raise ValueError("must be a path such as /scheduler, or nothing")
        return value

    @field_validator("memory_resource", "utilization_resource", "share_resource")
    @classmethod
    def _a_resource(cls, value: str) -> str:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", value):
            raise ValueError("must be an extended resource such as nvidia.com/gpu-memory")
        return value

    @model_validator(mode="after")
    def _three_resources(self) -> "Settings":
        three = (self.memory_resource, self.utilization_resource, self.share_resource)
        if len(set(three)) < len(three):
            raise ValueError("memory_resource, utilization_resource and share_resource must differ")
        return self

    @model_validator(mode="after")
    def _callers_are_known(self) -> "Settings":
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca needs tls_cert and tls_key")
        if self.tls_client_names and self.tls_client_ca is None:
            raise ValueError("tls_client_names needs tls_client_ca")
        if not (_is_loopback(self.host) or self.tls_client_ca or self.trust_network):
            raise ValueError(
                f"host {self.host} is not loopback: set tls_cert, tls_key and tls_client_ca, or trust_network"
            )
        return self

    @model_validator(mode="after")
    def _replicas_have_a_lease(self) -> "Settings":
        if self.lead != "none" and self.cluster is not None:
            raise ValueError(f"lead {self.lead} needs an API server, and cluster is a file")
        if self.lead == "lease" and not (self.pod_name and self.pod_namespace):
            raise ValueError("lead lease needs pod_name and pod_namespace")
        return self

    @model_validator(mode="after")
    def _webhooks_have_a_certificate(self) -> "Settings":
        if self.webhook_port is None:
            return self
        if self.webhook_certificates == "files" and (self.webhook_cert is None or self.webhook_key is None):
            raise ValueError("webhook_certificates files needs webhook_cert and webhook_key")
        if self.webhook_certificates == "self-signed" and (self.cluster is not None or not self.pod_namespace):
            raise ValueError("webhook_certificates self-signed needs an API server and pod_namespace")
        return self

    @property
    def dns_names(self) -> tuple[str, ...]:
        """What the API server may call the webhooks by: names and IP addresses."""
        said = tuple(filter(None, (name.strip() for name in self.webhook_names.split(","))))
        return said or (f"tessera-webhook.{self.pod_namespace}.svc",)

    @property
    def lease(self) -> tuple[str, str]:
        """Namespace and name of the Lease that says who leads."""
        if self.lead == "follow":
            return self.lease_namespace or "kube-system", self.lease_name or "kube-scheduler"
        return self.lease_namespace or self.pod_namespace, self.lease_name or "tessera-extender"

    @property
    def client_names(self) -> frozenset[str]:
        """The names of clients that may call; empty: all that the CA vouches for."""
        return frozenset(filter(None, (name.strip() for name in self.tls_client_names.split(","))))

    @property
    def rules(self) -> Rules:
        """What a card can give, as the state takes it."""
        return Rules(
            overcommit=round(1000 * self.overcommit),
            sharers=self.sharers,
            headroom_mib=self.headroom_mib,
            boundary=self.boundary == "namespace",
            allow_whole_gpus=self.allow_whole_gpus,
            policy=self.policy,
            seed=self.seed,
            resources=Resources(self.memory_resource, self.utilization_resource, self.share_resource),
        )


def read(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings; flags win over the environment, which wins over the file.

    Ends the process with status 2 and one sentence if a setting is unknown or not allowed.
    """
    environ = os.environ if environ is None else environ
    parser = _parser()
    flags = {name: value for name, value in vars(parser.parse_args(argv)).items() if value is not None}
    path = flags.pop("config", None) or environ.get(f"{PREFIX}CONFIG")
    said = _file(Path(path)) if path else {}
    said |= {name: environ[key] for name in Settings.model_fields if (key := PREFIX + name.upper()) in environ}
    try:
        return Settings(**(said | flags))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            _fail(f"there is no setting {name!r}; the settings are {', '.join(sorted(Settings.model_fields))}.")
        why = first["msg"].removeprefix("Value error, ")
        _fail(f"{name} is {first['input']!r}: {why}." if name else f"{why}.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tessera-extender",
        description="The kube-scheduler extender that packs pods onto fractions of GPUs.",
        epilog=f"Every flag may be given as {PREFIX}NAME in the environment, or as name: value in the file.",
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file of settings")
    for name, field in Settings.model_fields.items():
        flag = "--" + name.replace("_", "-")
        if field.annotation is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=field.description)
        else:
            shown = (
                f"{field.description} (default: {field.default})"
                if field.default not in (None, "")
                else field.description
            )
            parser.add_argument(flag, metavar=name.split("_")[-1].upper(), help=shown)
    return parser


def _file(path: Path) -> dict[str, Any]:
    try:
        said = yaml.safe_load(path.read_text())
    except OSError as error:
        _fail(f"the settings file {path} cannot be read: {error.strerror}.")
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        _fail(f"the settings file {path} is not YAML: {' '.join(str(error).split())[:200]}.")
    if not isinstance(said or {}, dict):
        _fail(f"the settings file {path} must be a mapping of name: value.")
    return {str(name).replace("-", "_"): value for name, value in (said or {}).items()}


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _fail(sentence: str) -> NoReturn:
    print(f"tessera-extender: {sentence}", file=sys.stderr)  # noqa: T201
    raise SystemExit(2)
