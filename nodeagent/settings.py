"""The agent's settings: flags, then the environment (`TESSERA_AGENT_*`), become one frozen object here."""

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, NoReturn

PREFIX: Final = "TESSERA_AGENT_"
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LEVELS: Final = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Settings:
    """What an administrator may set; the descriptions are the flags' help."""

    node: str = field(default="", metadata={"help": "the Node that this agent runs on"})
    server: str = field(
        default="", metadata={"help": "URL of the API server; default: that of the cluster that the agent runs in"}
    )
    token_file: Path = field(
        default=ACCOUNT / "token", metadata={"help": "file with the token to show; read again for each request"}
    )
    ca_file: Path = field(default=ACCOUNT / "ca.crt", metadata={"help": "file with the certificates to trust"})
    lease_namespace: str = field(default="tessera-agents", metadata={"help": "namespace of the agents' heartbeats"})
    host: str = field(default="0.0.0.0", metadata={"help": "address to serve metrics and probes on"})  # noqa: S104
    port: int = field(
        default=8582, metadata={"help": "port to serve metrics and probes on; 0 takes a free one", "least": 0}
    )
    interval: float = field(default=1.0, metadata={"help": "seconds from one sample to the next", "least": 0.1})
    proc: Path = field(default=Path("/proc"), metadata={"help": "the host's /proc"})
    cgroup_root: Path = field(default=Path("/sys/fs/cgroup"), metadata={"help": "the host's /sys/fs/cgroup"})
    enforce: bool = field(
        default=True, metadata={"help": "limit the memory of containers to their grants, where the driver can"}
    )
    over_percent: int = field(
        default=5, metadata={"help": "use beyond a grant that is still tolerated, in percent", "least": 0}
    )
    over_seconds: float = field(
        default=30.0, metadata={"help": "seconds of use beyond that before it is reported", "least": 0}
    )
    evict: bool = field(default=False, metadata={"help": "evict pods whose use beyond their grant was reported"})
    benign_xids: str = field(
        default="13,31,43,45,68,109",
        metadata={"help": "XIDs that are the application's fault and leave a card healthy"},
    )
    log_level: str = field(default="info", metadata={"help": "debug, info, warning or error"})


def read(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings; flags win over the environment.

    Ends the process with status 2 and one sentence if a setting is missing or not allowed.
    """
    environ = os.environ if environ is None else environ
    flags = vars(_parser().parse_args(argv))
    said: dict[str, Any] = {}
    for part in fields(Settings):
        text = flags[part.name] if flags[part.name] is not None else environ.get(PREFIX + part.name.upper())
        if text is not None:
            said[part.name] = _value(part.name, text, part.default, part.metadata.get("least"))
    if not said.get("server") and (host := environ.get("KUBERNETES_SERVICE_HOST")):
        host = f"[{host}]" if ":" in host else host
        said["server"] = f"https://{host}:{environ.get('KUBERNETES_SERVICE_PORT', '443')}"
    return _checked(Settings(**said))


def _checked(settings: Settings) -> Settings:
    if not settings.node:
        _fail("node is not given; in a DaemonSet it is the pod's spec.nodeName, through the downward API.")
    if not settings.server:
        _fail("server is not given, and this is no pod of a cluster.")
    if settings.log_level not in LEVELS:
        _fail(f"log_level is {settings.log_level!r}: must be one of {', '.join(LEVELS)}.")
    if not re.fullmatch(r"(\d+(,\d+)*)?", settings.benign_xids):
        _fail(f"benign_xids is {settings.benign_xids!r}: must be numbers with commas between, such as 13,31.")
    return settings


def _value(name: str, text: Any, default: Any, least: float | None) -> Any:
    """Return a setting's text as the type of its default."""
    kind = type(default)
    if kind is bool and not isinstance(text, bool):
        if text.lower() not in ("true", "false", "1", "0"):
            _fail(f"{name} is {text!r}: must be true or false.")
        return text.lower() in ("true", "1")
    if kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            _fail(f"{name} is {text!r}: must be a {'whole ' if kind is int else ''}number.")
        if least is not None and not least <= value < float("inf"):
            _fail(f"{name} is {text!r}: must be at least {least:g}.")
        return value
    return Path(text) if isinstance(default, Path) else text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tessera-agent",
        description="Reports what every GPU of this node is, does and allows.",
        epilog=f"Every flag may be given as {PREFIX}NAME in the environment.",
    )
    for part in fields(Settings):
        assert part.default is not MISSING
        flag, help_ = "--" + part.name.replace("_", "-"), str(part.metadata["help"])
        if isinstance(part.default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=help_)
        else:
            shown = f"{help_} (default: {part.default})" if part.default != "" else help_
            parser.add_argument(flag, metavar=part.name.split("_")[-1].upper(), help=shown)
    return parser


def _fail(sentence: str) -> NoReturn:
    print(f"tessera-agent: {sentence}", file=sys.stderr)  # noqa: T201
    raise SystemExit(2)
