"""The command line over a kubectl that answers: pages, namespaces, failures, completion, colours."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from extender.kubectl import __main__ as command_line
from extender.kubectl.api import Api, Unanswered
from extender.kubectl.complete import suggestions
from extender.kubectl.table import Column, Report, shown
from tests.builders import pod
from tests.extender.kubectl.given import GPUNODES, PROXY, Cluster, raw, scene


def report(cluster: Cluster, words: str) -> Report:
    """Return what a command finds in a cluster."""
    return command_line.answer(cluster.api, command_line.parser().parse_args(words.split()))


def notes(cluster: Cluster, words: str) -> str:
    """Return what a command says below its table."""
    return "\n".join(report(cluster, words).notes)


def paths(cluster: Cluster) -> str:
    """Return what was asked."""
    return "\n".join(command[-1] for command in cluster.asked)


def test_lists_come_in_pages_and_are_whole() -> None:
    """Every object of every page is there, each once."""
    cluster = scene()
    cluster.page = 1
    assert [row["pod"] for row in report(cluster, "pods -A").rows] == ["runs", "stray", "broken", "ml"]
    assert paths(cluster).count("/api/v1/pods?") == 4


def test_top_of_nodes_asks_one_question() -> None:
    """The inventories tell all: no pod is listed for it."""
    cluster = scene()
    report(cluster, "top")
    assert [command[-1].partition("?")[0] for command in cluster.asked] == [GPUNODES]


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("pods", "/api/v1/namespaces/default/pods?"),
        ("pods -n ml", "/api/v1/namespaces/ml/pods?"),
        ("top pods -A", "/api/v1/pods?"),
        ("top namespaces", "/api/v1/pods?"),
        ("quota", "/api/v1/namespaces/default/resourcequotas?"),
        ("quota -A", "/api/v1/resourcequotas?"),
        ("explain ml/x", "/api/v1/namespaces/ml/pods/x"),
        ("explain x -n ml", "/api/v1/namespaces/ml/pods/x"),
    ],
)
def test_which_namespace(words: str, path: str) -> None:
    """The flag, else the name's, else the context's."""
    cluster = scene()
    cluster.there |= {f"/api/v1/namespaces/ml/{kind}": [] for kind in ("pods", "resourcequotas")}
    cluster.there["/api/v1/namespaces/ml/pods/x"] = raw(pod("x", namespace="ml"))
    report(cluster, words)
    assert path in paths(cluster)


@pytest.mark.parametrize(("account", "expected"), [("team", "team"), (None, "default")])
def test_without_a_context(tmp_path: Path, account: str | None, expected: str) -> None:
    """As kubectl: the service account's namespace in a pod, else default."""
    file = tmp_path / "namespace"
    if account:
        file.write_text(account)
    said = b"error: current-context must exist in order to minify\n"
    api = Api(account=file, _run=lambda command, **_: subprocess.CompletedProcess(command, 1, b"", said))
    assert api.namespace() == expected


def test_finished_pods_are_not_even_asked_for() -> None:
    """They hold nothing, and there may be many."""
    cluster = scene()
    report(cluster, "pods")
    assert "status.phase%21%3DSucceeded" in paths(cluster)


def test_flags_reach_kubectl() -> None:
    """So that a command goes where kubectl would."""
    cluster = scene()
    api = Api("kubectl", ("--context", "there"), "", cluster.run)
    api.list(dict, GPUNODES)
    assert cluster.asked[0][:4] == ["kubectl", "--context", "there", "get"]


def test_explain_without_the_extender_shows_the_events() -> None:
    """And says what is missing."""
    cluster = scene()
    del cluster.there[f"{PROXY}/explain"]
    said = notes(cluster, "explain waits")
    assert "The extender tells nothing more: (NotFound)" in said
    assert "Event FailedScheduling: 0/2 nodes" in said


def test_an_answer_of_another_release_is_told() -> None:
    """And the rest is shown all the same."""
    cluster = scene()
    cluster.there[f"{PROXY}/explain"] = {"said": 5}
    said = notes(cluster, "explain waits")
    assert "its answer cannot be read" in said
    assert "It asks for main: 18Gi" in said


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (pod("x", memory=None), "It asks no GPU of Tessera."),
        (pod("x", memory="4096"), "cannot be read, so no node takes it: tessera.gpu/memory is '4096'"),
        (pod("x", phase="Succeeded"), "It has ended (Succeeded)"),
        (pod("x", node="n1"), "on n1 without a record"),
        (pod("x"), "No scheduler has looked at it yet; it names default-scheduler."),
    ],
)
def test_what_a_pod_alone_tells(made: object, word: str) -> None:
    """Whatever becomes of the extender."""
    cluster = Cluster({"/api/v1/namespaces/default/pods/x": raw(made), "/api/v1/namespaces/default/events": []})
    assert word in notes(cluster, "explain x")


def test_a_gated_pod_says_so() -> None:
    """kube-scheduler does not look at it, so no filter is to blame."""
    made = raw(pod("x"))
    made["spec"]["schedulingGates"] = [{"name": "queue"}]
    cluster = Cluster({"/api/v1/namespaces/default/pods/x": made, "/api/v1/namespaces/default/events": []})
    assert "scheduling gates, and kube-scheduler does not look at it before they are gone: queue" in notes(
        cluster, "explain x"
    )


def test_a_failure_is_one_sentence_of_kubectls() -> None:
    """Without its prefix, and with no trace of ours."""
    with pytest.raises(Unanswered, match=r"^\(NotFound\): the server could not find gpunodes$"):
        report(Cluster(), "top")


def test_no_kubectl_is_one_sentence(tmp_path: Path) -> None:
    """Run as a process: status 1, and nothing on standard output."""
    environ = {"KUBECTL": str(tmp_path / "none"), "PATH": ""}
    command = [sys.executable, "-m", "extender.kubectl", "top"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"kubectl tessera: .*none is not there; set KUBECTL to kubectl's path\.\n", done.stderr)


@pytest.mark.parametrize("words", [["top", "cats"], ["pods", "-o", "xml"], ["sing"], []])
def test_a_wrong_command_line(words: list[str]) -> None:
    """Status 2, as everywhere."""
    with pytest.raises(SystemExit) as stopped:
        command_line.main(words)
    assert stopped.value.code == 2


@pytest.fixture
def answering() -> Iterator[str]:
    """Serve one sentence with status 404 at a URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404)
            self.end_headers()
            self.wfile.write(b'{"Error":"No pod waits."}')

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_an_extender_at_a_url(answering: str) -> None:
    """Its own words are passed on; where nobody listens, that is told."""
    with pytest.raises(Unanswered, match="No pod waits"):
        Api(extender=answering).ask_extender("/explain", pod="a/b")
    with pytest.raises(Unanswered, match="does not answer"):
        Api(extender="http://127.0.0.1:1").ask_extender("/explain")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([""], ["doctor", "explain", "pods", "quota", "top"]),
        (["t"], ["top"]),
        (["top", ""], ["cards", "namespaces", "nodes", "pods"]),
        (["top", "cards", ""], []),
        (["pods", "-o", "j"], ["json"]),
        (["pods", "--al"], ["--all-namespaces"]),
        (["quota", "-n", ""], ["default", "ml"]),
        (["explain", "st"], ["stray"]),
        (["doctor", ""], []),
        (["explain", "-n", "ml", ""], ["broken"]),
        (["explain", "--namespace=ml", ""], ["broken"]),
        (["explain", "-o", "wide", "st"], ["stray"]),
        (["explain", "-o", "wide", "stray", ""], []),
        (["top", "-A", ""], ["cards", "namespaces", "nodes", "pods"]),
        (["top", "-A", "pods", ""], []),
    ],
)
def test_completion(words: list[str], expected: list[str]) -> None:
    """Commands, choices, flags, and names that the API server knows."""
    cluster = scene()
    cluster.there["/api/v1/namespaces/ml/pods"] = [raw(pod("broken", namespace="ml"))]
    assert suggestions(words, cluster.api) == expected


def test_completion_is_silent_when_nobody_answers() -> None:
    """A shell that completes has no place for sentences."""
    assert suggestions(["explain", ""], Cluster().api) == []


def test_colours_change_nothing_but_colours() -> None:
    """Without them the text is the same."""
    made = Report((Column("A", "a"), Column("B", "b")), [{"a": "ok", "b": 1}, {"a": "fail", "b": None}])
    plain, coloured = shown(made, "table"), shown(made, "table", colours=True)
    assert "\x1b[32mok" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain
    assert plain.splitlines()[2].split() == ["fail", "-"]
