"""The way from a source to a watcher: whatever the source does, the watcher ends up knowing what is true."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.cluster import Event, Gone, Unreachable, Watched
from extender.cluster.embedded import EmbeddedCluster
from extender.watch import FAILURES_TO_RELIST, LONGEST_PAUSE, Change, Reflector, Watch, tell
from extender.wire import AgentLease, GpuNode, LeaseMeta, Meta, Node, Pod

Step = Callable[["Script"], Iterator[Event]]


def pod(name: str, uid: str = "", version: str = "1") -> Pod:
    return Pod(Meta(name=name, namespace="ns", uid=uid or f"u-{name}", resource_version=version))


class Script:
    """A source that does what it is told, call by call, and stops its reflector when there is nothing left."""

    kind = "pods"

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)
        self.calls: list[str] = []
        self.done: Callable[[], None] = lambda: None

    def _next(self, call: str) -> Any:
        self.calls.append(call)
        if not self.steps:
            self.done()
            raise Unreachable("the script is over")
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    def list(self) -> tuple[list[Watched], str]:
        """Give a list of the script."""
        found: tuple[list[Watched], str] = self._next("list")
        return found

    def watch(self, version: str) -> Iterator[Event]:
        """Give the events of the script, and raise the exceptions among them."""
        for event in self._next(f"watch {version}"):
            if isinstance(event, Exception):
                raise event
            yield event

    def close(self) -> None:
        """Nothing is under way between two calls."""


class View:
    """A watcher that remembers what it was told: the calls, and what is there now by UID or name."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.pods: dict[str, str] = {}

    def saw_node(self, node: Node) -> None:
        self.calls.append(("saw_node", node.metadata.name))

    def lost_node(self, name: str) -> None:
        self.calls.append(("lost_node", name))

    def saw_inventory(self, gpu_node: GpuNode) -> None:
        self.calls.append(("saw_inventory", gpu_node.metadata.name))

    def lost_inventory(self, name: str) -> None:
        self.calls.append(("lost_inventory", name))

    def saw_pod(self, pod: Pod) -> None:
        names = {uid.rpartition("#")[0] for uid in self.pods if uid != pod.metadata.uid}
        assert pod.metadata.name not in names, "its predecessor must be lost first"
        self.calls.append(("saw_pod", pod.metadata.uid))
        self.pods[pod.metadata.uid] = pod.metadata.resource_version

    def lost_pod(self, pod: Pod) -> None:
        assert pod.metadata.namespace == "ns"
        self.calls.append(("lost_pod", pod.metadata.uid))
        del self.pods[pod.metadata.uid]

    def saw_lease(self, lease: AgentLease) -> None:
        self.calls.append(("saw_lease", lease.metadata.name))

    def lost_lease(self, name: str) -> None:
        self.calls.append(("lost_lease", name))


class Run:
    """A reflector run over a script, without time passing but in its pauses."""

    def __init__(self, *steps: Any, watch_lasts: float = 0.0) -> None:
        self.view, self.pauses, self.now, self.lists = View(), list[float](), 0.0, 0
        self.script = Script(*steps)
        self.lasts = watch_lasts
        self.reflector = Reflector(self.script, self.emit, clock=self.clock, rng=Random(0), sleep=self.pauses.append)
        self.script.done = self.reflector.stop
        self.reflector.run()

    def clock(self) -> float:
        self.now += self.lasts
        return self.now

    def emit(self, changes: list[Change], listed: bool) -> None:
        self.lists += listed
        for change in changes:
            tell(self.view, change)


def added(found: Pod) -> Event:
    return Event("ADDED", found, found.metadata.resource_version)


def opened(version: str) -> Event:
    return Event("BOOKMARK", None, version)


# --- what is told --------------------------------------------------------------------------------------------


def test_a_list_then_its_watch() -> None:
    """Objects of the list are seen, then the events; each watch begins where the last one ended."""
    deleted = Event("DELETED", pod("a", version="4"), "4")
    run = Run(
        ([pod("a")], "1"),
        [opened("1"), added(pod("b", version="3")), deleted],
        [opened("4"), Event("BOOKMARK", None, "9")],
    )
    assert run.view.calls == [("saw_pod", "u-a"), ("saw_pod", "u-b"), ("lost_pod", "u-a")]
    assert run.script.calls == ["list", "watch 1", "watch 4", "watch 9"]
    assert run.pauses == []


def test_a_relist_finds_what_was_missed() -> None:
    """After 410 the next list tells of what is new, other or gone, and of nothing that stayed as it was."""
    run = Run(
        ([pod("gone"), pod("other"), pod("same")], "1"),
        Gone("too old"),
        ([pod("same"), pod("other", version="2"), pod("new")], "5"),
    )
    assert run.view.calls[3:] == [("lost_pod", "u-gone"), ("saw_pod", "u-other"), ("saw_pod", "u-new")]
    assert run.script.calls == ["list", "watch 1", "list", "watch 5"]
    assert run.lists == 2


@pytest.mark.parametrize("by", ["list", "event"])
def test_a_pod_created_again_is_first_lost(by: str) -> None:
    """The same name with another UID is another pod, even if its deletion was never seen."""
    again = pod("a", "new", "5")
    steps: list[Any] = [Gone("too old"), ([again], "5")] if by == "list" else [[opened("1"), added(again)]]
    run = Run(([pod("a", "old")], "1"), *steps)
    assert run.view.calls == [("saw_pod", "old"), ("lost_pod", "old"), ("saw_pod", "new")]


def test_each_kind_has_its_calls() -> None:
    """Eight calls, one for each kind seen and lost."""
    view, meta = View(), Meta(name="x", namespace="ns", uid="x")
    for found in (Node(meta), GpuNode(meta), Pod(meta), AgentLease(LeaseMeta("x", "ns", "x"))):
        tell(view, Change(found))
        tell(view, Change(found, lost=True))
    nouns = ("node", "inventory", "pod", "lease")
    assert view.calls == [(f"{verb}_{noun}", "x") for noun in nouns for verb in ("saw", "lost")]


# --- pauses --------------------------------------------------------------------------------------------------


def test_pauses_grow_to_their_limit() -> None:
    """Failures in a row are answered with longer pauses, each between a half and the whole of its longest."""
    run = Run(*[Unreachable("down")] * 12)
    longest = [min(LONGEST_PAUSE, 0.2 * 2**n) for n in range(12)]
    assert all(0.5 * most <= pause <= most for pause, most in zip(run.pauses, longest, strict=True))


@pytest.mark.parametrize("end", [None, Unreachable("reset")])
def test_a_server_that_ends_each_watch_at_once_is_given_pauses(end: Exception | None) -> None:
    """A watch that said nothing and did not last is a failure, however it ended."""
    watch = [opened("1"), *([end] if end else [])]
    run = Run(([], "1"), *[watch] * 4)
    assert len(run.pauses) == 4
    assert run.pauses[3] > run.pauses[0] * 2


def test_a_watch_that_delivered_starts_the_pauses_anew() -> None:
    """After a good watch the first failure costs the shortest pause."""
    good = [opened("1"), added(pod("a", version="2")), Unreachable("reset")]
    run = Run(*[Unreachable("down")] * 6, ([], "1"), good)
    assert run.pauses[5] > 3.0
    assert run.pauses[6] <= 0.2


def test_a_watch_that_lasted_starts_the_pauses_anew() -> None:
    """A quiet watch that was open for long is no failure."""
    run = Run(*[Unreachable("down")] * 6, ([], "1"), [opened("1")], watch_lasts=6.0)
    assert len(run.pauses) == 6


def test_gone_again_and_again_is_answered_with_pauses() -> None:
    """A server that lists and then says 410 to the watch is not asked without end."""
    run = Run(*[([], "1"), Gone("too old")] * 4)
    assert len(run.pauses) == 4
    assert run.pauses[3] > run.pauses[0] * 2


def test_failures_in_a_row_lead_to_a_list() -> None:
    """A version that the server never accepts is given up, not asked for until the end of time."""
    run = Run(([], "1"), *[Unreachable("no")] * FAILURES_TO_RELIST, ([], "9"))
    assert run.script.calls == ["list", *["watch 1"] * FAILURES_TO_RELIST, "list", "watch 9"]


def test_an_error_that_nobody_foresaw_is_a_failure_like_another() -> None:
    """The thread is the only eye on its kind: it goes on."""
    run = Run(KeyError("a bug"), ([pod("a")], "1"))
    assert run.view.pods == {"u-a": "1"}


# --- any history ---------------------------------------------------------------------------------------------


class World:
    """Pods that come, change and go, and a source that tells of them as badly as its script wants."""

    kind = "pods"

    def __init__(self, steps: list[tuple[str, int]]) -> None:
        self.steps, self.log, self.truth = steps, list[Event](), dict[str, Pod]()
        self.births = 0
        self.done: Callable[[], None] = lambda: None

    def _live(self) -> str:
        """Let things happen until the script says how the next call goes; in the end all calls go well."""
        while self.steps:
            what, which = self.steps.pop(0)
            if what not in ("write", "delete"):
                return what
            name, version = "abc"[which % 3], str(len(self.log) + 1)
            if what == "delete" and (old := self.truth.pop(name, None)) is not None:
                self.log.append(Event("DELETED", pod(name, old.metadata.uid, version), version))
            elif what == "write":
                self._write(name, version)
        return ""

    def _write(self, name: str, version: str) -> None:
        old = self.truth.get(name)
        self.births += old is None
        uid = old.metadata.uid if old else f"{name}#{self.births}"
        self.truth[name] = pod(name, uid, version)
        self.log.append(Event("MODIFIED" if old else "ADDED", self.truth[name], version))

    def list(self) -> tuple[list[Watched], str]:
        """List what is true now."""
        if self._live() in ("gone", "fail"):
            raise Unreachable("no")
        return [*self.truth.values()], str(len(self.log))

    def watch(self, version: str) -> Iterator[Event]:
        """Tell what happened since, until the script breaks it."""
        yield opened(version)
        at = int(version)
        while (how := self._live()) == "tell" or (not how and at < len(self.log)):
            yield self.log[at] if at < len(self.log) else opened(str(at))
            at = min(at + 1, len(self.log))
        if how == "gone":
            raise Gone("too old")
        if how == "fail":
            raise Unreachable("reset")
        if not how:
            self.done()

    def close(self) -> None:
        """Nothing is under way between two calls."""


STEPS = st.sampled_from(["write", "write", "delete", "tell", "tell", "end", "fail", "gone"])


@given(st.lists(st.tuples(STEPS, st.integers(0, 2)), max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_history_ends_in_the_truth(steps: list[tuple[str, int]]) -> None:
    """Whatever happened, was told, cut off or forgotten: in the end the watcher knows what is true."""
    world, view = World(steps), View()

    def emit(changes: list[Change], listed: bool) -> None:
        for change in changes:
            tell(view, change)

    reflector = Reflector(world, emit, sleep=lambda _: None)
    world.done = reflector.stop
    reflector.run()
    assert view.pods == {p.metadata.uid: p.metadata.resource_version for p in world.truth.values()}


# --- threads and the event loop ------------------------------------------------------------------------------


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not come true")


@pytest.mark.anyio
async def test_watch_tells_all_kinds_on_the_event_loop() -> None:
    """Lists and later events arrive in order, in the loop's own thread, and `synced` comes after the lists."""
    cluster = EmbeddedCluster([Node(Meta(name="n1"))], [GpuNode(Meta(name="n1"))], [pod(f"p{n}") for n in range(500)])
    threads: set[threading.Thread] = set()

    class Here(View):
        def saw_pod(self, pod: Pod) -> None:
            threads.add(threading.current_thread())
            super().saw_pod(pod)

    view = Here()
    watch = Watch(cluster.sources(), view)
    watch.start()
    assert not watch.synced()
    await until(watch.synced)
    assert [uid for call, uid in view.calls if call == "saw_pod"] == [f"u-p{n}" for n in range(500)]
    assert {("saw_node", "n1"), ("saw_inventory", "n1")} < set(view.calls)
    cluster.delete("u-p0")
    await until(lambda: "u-p0" not in view.pods)
    assert threads == {threading.current_thread()}
    await watch.stop()


@pytest.mark.anyio
async def test_a_list_that_is_told_in_part_is_not_whole() -> None:
    """Its pieces are told one after the other, and other things happen in between."""
    cluster, found = EmbeddedCluster(pods=[pod(f"p{n}") for n in range(500)]), []

    class Asking(View):
        def saw_pod(self, pod: Pod) -> None:
            found.append(watch.whole())

    watch = Watch(cluster.sources(), Asking())
    watch.start()
    await until(lambda: watch.synced() and watch.whole())
    cluster.admit(pod("later"))
    await until(lambda: len(found) == 501)
    assert found == [False] * 500 + [True]
    await watch.stop()


@pytest.mark.anyio
async def test_stop_ends_the_threads_and_the_calls() -> None:
    """After `stop` no thread is left, and what happens then is not told."""
    cluster, view = EmbeddedCluster(), View()
    watch = Watch(cluster.sources(), view)
    watch.start()
    await until(watch.synced)
    await watch.stop()
    for thread in watch._threads:
        thread.join(20)
        assert not thread.is_alive()
    cluster.admit(pod("late"))
    await asyncio.sleep(0)
    assert view.calls == []


@pytest.mark.anyio
async def test_a_watcher_that_fails_is_still_told_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    """An object that cannot be understood is logged, and does not hide those after it."""

    class Picky(View):
        def saw_pod(self, pod: Pod) -> None:
            if pod.metadata.name == "bad":
                raise ValueError("cannot be understood")
            super().saw_pod(pod)

    view = Picky()
    watch = Watch(EmbeddedCluster(pods=[pod("bad"), pod("good")]).sources(), view)
    watch.start()
    await until(watch.synced)
    await watch.stop()
    assert list(view.pods) == ["u-good"]
    assert "Telling of Pod bad failed." in caplog.text


@pytest.mark.anyio
async def test_silence_and_outage_are_of_the_worst_kind() -> None:
    """A quiet watch is silent but no outage; a broken one is both, whatever the others do."""
    now = 100.0
    held = threading.Event()

    class Held(Script):
        def watch(self, version: str) -> Iterator[Event]:
            yield opened(version)
            held.wait()

    quiet, broken = Held(([], "1")), Script()
    watch = Watch([quiet, broken], View(), clock=lambda: now, sleep=lambda _: held.wait())
    watch.start()
    await until(lambda: watch._reflectors[0].broken is None)
    now = 107.0
    assert (watch.silence(), watch.outage()) == (7.0, 7.0)
    assert not watch.synced()
    watch._reflectors[1].broken = None
    assert (watch.silence(), watch.outage()) == (7.0, 0.0)
    held.set()
    await watch.stop()


def test_counters_are_of_what_came_after_the_first_time() -> None:
    """The first list and the first watch are no trouble; all later ones count."""
    run = Run(([], "1"), Gone("too old"), ([], "2"), [opened("2"), added(pod("a", version="3"))])
    watch = Watch([run.script], run.view)
    watch._reflectors = [run.reflector]
    assert (watch.relists(), watch.reconnects()) == ({"pods": 1}, {"pods": 2})
    assert Counter(call.split()[0] for call in run.script.calls) == {"list": 2, "watch": 3}
