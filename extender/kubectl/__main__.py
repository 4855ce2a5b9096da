"""The command line: flags, what to ask, how to show it. `kubectl tessera ...` runs it as `kubectl-tessera`."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NoReturn

try:
    import msgspec  # noqa: F401  # here first, for one sentence in place of a traceback
except ModuleNotFoundError as error:
    raise SystemExit(f"kubectl tessera: {error.name} is missing: install tessera-gpu[kubectl].") from error

from contract.names import Resources
from extender.kubectl.api import GPUNODES, UNFINISHED, Api, Unanswered, at_once, kubectl_of
from extender.kubectl.quota import quotas
from extender.kubectl.table import Report, shown
from extender.kubectl.top import top_cards, top_nodes
from extender.wire import GpuNode, Pod

EXTENDER: Final = "tessera-system/http:tessera-extender:probes"
KINDS: Final = ("nodes", "cards", "pods", "namespaces")
COMMANDS: Final = {
    "top": "what is promised and what is measured: of nodes, cards, pods or namespaces",
    "pods": "the pods that hold shares of cards",
    "explain": "what a pod asks, and why it waits",
    "quota": "what namespaces may take of GPUs, and have taken",
    "doctor": "check the installation",
}


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command: exit with 0, with 1 if a check failed or nothing answered, with 2 for a wrong command line."""
    said = parser().parse_args(argv)
    flags = [flag for name in ("context", "kubeconfig") if (v := getattr(said, name)) for flag in (f"--{name}", v)]
    api = kubectl_of(flags, said.extender)
    try:
        report = answer(api, said)
    except Unanswered as error:
        print(f"kubectl tessera: {error}", file=sys.stderr)  # noqa: T201
        raise SystemExit(1) from error
    colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    try:
        print(shown(report, said.output, colours=colours), flush=True)  # noqa: T201
    except BrokenPipeError:  # a pager that was closed is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(int(report.failed))


def answer(api: Api, said: argparse.Namespace) -> Report:
    """Return what a command line found.

    Raises
    ------
    Unanswered
    """
    return _ANSWERS[said.command](api, said)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("-o", "--output", choices=("table", "wide", "json", "yaml"), default="table")
    common.add_argument("--context", metavar="NAME", help="context of the kubeconfig")
    common.add_argument("--kubeconfig", metavar="FILE", help="kubeconfig file")
    default = os.environ.get("TESSERA_EXTENDER", EXTENDER)
    common.add_argument(
        "--extender",
        metavar="WHERE",
        default=default,
        help=f"the extender's port for probes: NAMESPACE/SCHEME:SERVICE:PORT, or a URL (default: {EXTENDER})",
    )
    scoped = argparse.ArgumentParser(add_help=False)
    scoped.add_argument("-n", "--namespace", metavar="NAME", help="default: the context's")
    scoped.add_argument("-A", "--all-namespaces", action="store_true")
    whole = argparse.ArgumentParser(
        prog="kubectl tessera", description="Shares of GPUs: who has them, who waits, and why."
    )
    whole.set_defaults(clock=time.time, version=_version())
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, told in COMMANDS.items():
        parents = [common] if name == "doctor" else [common, scoped]
        command = commands.add_parser(name, help=told, description=told.capitalize() + ".", parents=parents)
        if name == "top":
            command.add_argument("kind", nargs="?", choices=KINDS, default="nodes", help="default: nodes")
        if name == "explain":
            command.add_argument("pod", metavar="POD", help="a name, or NAMESPACE/NAME")
    return whole


# Commands that read what pods ask or hold import it themselves: numpy takes longer than most answers, and explain
# lets it load while the cluster answers.

# --- commands ------------------------------------------------------------------------------------------------


def _top(api: Api, said: argparse.Namespace) -> Report:
    if said.kind in ("nodes", "cards"):
        nodes = api.list(GpuNode, GPUNODES)
        return top_nodes(nodes) if said.kind == "nodes" else top_cards(nodes)
    everywhere = said.all_namespaces or (said.kind == "namespaces" and not said.namespace)
    return _of_pods(api, said, namespaces=said.kind == "namespaces", everywhere=everywhere)


def _pods(api: Api, said: argparse.Namespace) -> Report:
    return _of_pods(api, said, namespaces=False, everywhere=said.all_namespaces)


def _of_pods(api: Api, said: argparse.Namespace, *, namespaces: bool, everywhere: bool) -> Report:
    from extender.kubectl.held import top_namespaces, top_pods

    path = _path(api, said, "pods", everywhere=everywhere)
    if namespaces:
        return top_namespaces(api.list(Pod, path, **UNFINISHED), Resources())
    questions: list[Callable[[], Any]] = [
        partial(api.list, Pod, path, **UNFINISHED),
        partial(api.list, GpuNode, GPUNODES),
    ]
    pods, nodes = at_once(questions)
    return top_pods(pods, nodes, Resources())


def _path(api: Api, said: argparse.Namespace, kind: str, *, everywhere: bool) -> str:
    return f"/api/v1/{kind}" if everywhere else f"/api/v1/namespaces/{said.namespace or api.namespace()}/{kind}"


def _explain(api: Api, said: argparse.Namespace) -> Report:
    namespace, _, name = said.pod.rpartition("/")
    if said.all_namespaces:
        raise Unanswered("explain is about one pod: give its namespace with -n.")
    namespace = said.namespace or namespace or api.namespace()
    path, pod = f"/api/v1/namespaces/{namespace}", f"{namespace}/{name}"
    with ThreadPoolExecutor(2) as threads:
        asked = threads.submit(api.object, f"{path}/pods/{name}"), threads.submit(_told, api, pod)
        from extender.kubectl.why import asks_the_extender, explained, told_in

        raw, told = asked[0].result(), told_in(asked[1].result())
    events: list[dict[str, Any]] = []
    if isinstance(told, str) and asks_the_extender(raw, Resources()):
        only = f"involvedObject.uid={raw['metadata']['uid']}"
        events = api.list(dict[str, Any], f"{path}/events", fieldSelector=only)
    return explained(raw, told, events, Resources(), wide=said.output != "table")


def _told(api: Api, pod: str) -> bytes | str:
    """Return what the extender tells of a pod, or why it tells nothing."""
    try:
        return api.ask_extender("/explain", pod=pod)
    except Unanswered as error:
        return str(error)


def _quota(api: Api, said: argparse.Namespace) -> Report:
    path = _path(api, said, "resourcequotas", everywhere=said.all_namespaces)
    return quotas(api.list(dict[str, Any], path), Resources())


def _doctor(api: Api, said: argparse.Namespace) -> Report:
    from extender.kubectl.doctor import diagnose
    from extender.kubectl.facts import gather

    return diagnose(gather(api, said.clock, said.version))


def _version() -> str:
    try:
        return version("tessera-gpu")
    except PackageNotFoundError:
        return "unknown"


_ANSWERS: Final[dict[str, Callable[[Api, argparse.Namespace], Report]]] = {
    "top": _top,
    "pods": _pods,
    "explain": _explain,
    "quota": _quota,
    "doctor": _doctor,
}

if __name__ == "__main__":
    main()
