"""One tick after the other: what reaches whom, and what happens when a part fails."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest

from contract.inventory import Gpu
from nodeagent.api import Api
from nodeagent.conditions import Host
from nodeagent.health import Health
from nodeagent.heart import BEAT_SECONDS, Heart
from nodeagent.limits import Limits
from nodeagent.loop import ALIVE_SECONDS, FIRST_SECONDS, LEAST_SECONDS, Agent
from nodeagent.notices import WAITING, Notice, Notices
from nodeagent.observe import OVER, Bounds, Observer
from nodeagent.past import Past
from nodeagent.pods import HeldPod
from nodeagent.processes import Owners
from nodeagent.publish import Publisher
from nodeagent.reader import Event, EventKind, MemoryLimit, Process, Reading
from tests.fakes_apiserver import ApiServer, Handler, refusal, reply
from tests.nodeagent.given import card, held, reading

STATUS = "/apis/tessera.gpu/v1alpha1/gpunodes/n1/status"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/agents/leases/n1"
GPUNODE = "/apis/tessera.gpu/v1alpha1/gpunodes/n1"


@dataclass
class Driver:
    """A `Reader` that answers what a test gave it."""

    answers: list[Reading | Exception] = field(default_factory=lambda: [reading()])
    events: list[Event] = field(default_factory=list)
    when_empty: Callable[[], None] = lambda: None

    def read(self, deadline_s: float) -> Reading:
        """Return the next answer; the last one again and again."""
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def recall(self, known: Iterable[Gpu], wanted: Callable[[str], bool]) -> None:
        """Nothing is remembered here."""

    def wait_event(self, timeout_s: float) -> Event | None:
        """Return the next event."""
        if self.events:
            return self.events.pop(0)
        self.when_empty()
        return None

    def memory_limit(self, uuid: str, cgroup: str) -> MemoryLimit | None:
        """No limits here."""
        return None

    def set_memory_limit(self, uuid: str, cgroup: str, hard_mib: int | None) -> None:
        """No limits here."""

    def close(self) -> None:
        """Nothing to let go."""


class Bench:
    """An agent whose clock, driver and pods a test turns; it tells when the test says so."""

    def __init__(self, api: Api, server: ApiServer, folder: Path) -> None:
        self.now, self.driver, self.server = 0.0, Driver(), server
        self.pods: dict[str, HeldPod] | None = {}
        server.script("GET", GPUNODE, refusal(404, "not found"))
        server.script("PATCH", LEASE, reply(200, {}))
        server.script("PATCH", STATUS, reply(200, {}))
        self.agent = Agent(
            "n1",
            self.driver,
            Health(),
            lambda: self.pods,
            Owners(folder),
            Limits(self.driver, folder, clock=self.clock),
            Observer(Bounds()),
            Heart(api, "n1", "agents", clock=self.clock),
            Publisher(api, "n1", clock=self.clock),
            Notices(api, "n1", clock=self.clock),
            Host("6.1", True),
            clock=self.clock,
        )

    def clock(self) -> float:
        """Return the time."""
        return self.now

    def step(self, seconds: float = 1.0) -> int:
        """Let time pass, tick and tell; return how many reports went out until now."""
        self.now += seconds
        self.agent.tick()
        self.agent.tell()
        return self.reports()

    def reports(self) -> int:
        """Return how many reports went out until now."""
        return sum(r.path == STATUS for r in self.server.requests)


@pytest.fixture
def bench(api: Api, server: ApiServer, tmp_path: Path) -> Bench:
    """Return a bench with one idle card and no pods."""
    return Bench(api, server, tmp_path)


def test_the_first_report_waits_for_the_pods_but_not_for_ever(bench: Bench) -> None:
    """Without them a pod's memory could not be told from a stranger's; after ten seconds it goes out all the same."""
    bench.pods = None
    assert [bench.step() for _ in range(3)] == [0, 0, 0]
    bench.pods = {}
    assert bench.step() == 1
    other = bench.server.requests[-1].body
    assert other["status"]["gpus"][0]["uuid"] == "GPU-a"


def test_pods_that_cannot_be_listed_do_not_silence_the_node(bench: Bench) -> None:
    """An agent without the right to list pods still reports its cards."""
    bench.pods = None
    assert bench.step() == 0
    assert bench.step(FIRST_SECONDS + 1) == 1


def test_the_first_report_waits_for_the_past(bench: Bench) -> None:
    """For as long as it takes: a card that was bad or is missing must not be told as well, or not at all."""
    bench.agent.past, bench.pods = None, None
    assert [bench.step(FIRST_SECONDS) for _ in range(3)] == [0, 0, 0]
    bench.agent.past = Past()
    assert bench.step() == 0, "and then for the pods, as ever"
    assert bench.step(FIRST_SECONDS + 1) == 1


def test_the_first_report_waits_for_every_card_but_not_for_ever(bench: Bench) -> None:
    """A driver may take seconds to start: until then a node must not be told to have no cards."""
    bench.driver.answers = [Reading(awaited=True), Reading(awaited=True), reading()]
    assert [bench.step() for _ in range(3)] == [0, 0, 1]
    bench.driver.answers = [replace(reading(), awaited=True)]
    assert bench.step(FIRST_SECONDS) == 1, "and a card that is put in later, and hangs, hides nobody"
    bench.driver.answers = [Reading(awaited=True, faults=("The driver does not answer.",))]
    assert bench.step() == 2


def test_no_report_before_the_first_heartbeat(bench: Bench) -> None:
    """A GPUNode without a Lease would be taken for one written by hand, and never for silent."""
    bench.server.script("PATCH", LEASE, refusal(403, "no rights"))
    assert [bench.step() for _ in range(3)] == [0, 0, 0]
    bench.server.script("PATCH", LEASE, reply(200, {}))
    assert bench.step(60.0) == 1


def test_a_node_that_is_registered_again_is_told_again(bench: Bench) -> None:
    """The GPUNode went with the Node, and so did the Lease: the next beat brings both back."""
    bench.step()
    before = len(bench.server.requests)
    bench.server.script("PATCH", LEASE, refusal(404, "not found"), reply(200, {}))
    bench.server.script("PATCH", STATUS, refusal(404, "not found"), reply(200, {}))
    bench.server.script("GET", "/api/v1/nodes/n1", reply(200, {"metadata": {"uid": "u2"}}))
    bench.server.script("POST", LEASE.rpartition("/")[0], reply(201, {}))
    bench.server.script("PATCH", GPUNODE, reply(201, {}))
    bench.step(BEAT_SECONDS)
    made = [r.body for r in bench.server.requests[before:] if r.path in (LEASE.rpartition("/")[0], GPUNODE)]
    assert [each["metadata"]["ownerReferences"][0]["uid"] for each in made] == ["u2", "u2"]
    assert bench.server.requests[-1].body["status"]["gpus"][0]["uuid"] == "GPU-a"


def test_the_heart_stops_with_the_samples(bench: Bench) -> None:
    """If the loop hangs, the process lives and is silent all the same; with the next sample it beats again."""
    bench.step()
    assert bench.agent.heart.beats == 1
    bench.now += ALIVE_SECONDS + 60.0
    assert not bench.agent.alive()
    bench.agent.tell()
    assert bench.agent.heart.beats == 1
    bench.step()
    assert bench.agent.heart.beats == 2


def test_foreign_use_is_told_at_once_and_shown(bench: Bench) -> None:
    """A granted pod's process beside one of nobody: the report and the metrics agree."""
    bench.pods = {"uid-p": held("p", GPU_a=4096)}
    bench.step()
    bench.driver.answers = [reading(card("GPU-a", Process(1, 3000)))]
    assert bench.step() == 2
    assert bench.server.requests[-1].body["status"]["gpus"][0]["foreignMiB"] == 3000
    text = bench.agent.metrics.text().decode()
    assert 'tessera_gpu_memory_granted_bytes{gpu_uuid="GPU-a"} 4.294967296e+09' in text
    assert 'tessera_gpu_memory_foreign_bytes{gpu_uuid="GPU-a"} 3.145728e+09' in text
    assert "tessera_agent_samples_total 2.0" in text


def test_a_card_that_answers_no_more_evicts_nobody(bench: Bench, tmp_path: Path) -> None:
    """One peak, then silence: what was last seen lasts for no window, and nobody is judged by it."""
    uid = "0f7a1b2c-3d4e-4f50-8a6b-7c8d9e0f1a2b"
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "cgroup").write_text(f"0::/kubepods/pod{uid}\n")
    bench.pods = {uid: replace(held("p", GPU_a=1024), uid=uid)}
    peak = card("GPU-a", Process(1, 9000))
    for second in range(40):
        bench.driver.answers = [reading(replace(peak, age_s=float(second)))]
        bench.step()
    assert bench.agent.observer.counts[OVER] == 0
    bench.driver.answers = [reading(peak)]
    for _ in range(40):
        bench.step()
    assert bench.agent.observer.counts[OVER] == 1


def test_what_is_not_known_has_no_series(bench: Bench) -> None:
    """Before the pods are listed nobody knows what is granted; no eviction is a zero that is known."""
    bench.pods = None
    bench.step()
    text = bench.agent.metrics.text().decode()
    assert "tessera_gpu_memory_granted_bytes{" not in text
    assert 'tessera_agent_events_total{reason="GPUMemoryEviction"} 0.0' in text
    bench.pods = {}
    bench.step()
    assert "tessera_gpu_memory_granted_bytes{" in bench.agent.metrics.text().decode()


def test_a_failed_sample_does_not_end_the_agent(bench: Bench) -> None:
    """One odd answer is logged; the next sample is taken."""
    bench.agent.interval = 0.0
    bench.driver.answers = [ValueError("odd"), reading(), reading(must_restart=True)]
    assert bench.agent.run() == 1
    assert bench.agent.metrics.view.ticks == 2


def test_events_reach_who_judges_and_wake_the_loop(bench: Bench) -> None:
    """An XID is in the next report, which does not wait for the interval to end."""
    bench.step()
    bench.driver.events = [Event("GPU-a", EventKind.XID, 79)]
    bench.driver.when_empty = bench.agent.stopping.set
    bench.agent.keep_hearing()
    assert bench.agent.soon.is_set()
    bench.step()
    gpu = bench.server.requests[-1].body["status"]["gpus"][0]
    assert (gpu["healthy"], gpu["reason"][:6]) == (False, "XID 79")


def test_a_storm_of_benign_events_leaves_the_pace_alone(bench: Bench) -> None:
    """A tenant whose processes crash does not set how often the node is sampled; each error is counted."""
    bench.driver.events = [Event("GPU-a", EventKind.XID, 31)] * 100
    bench.driver.when_empty = bench.agent.stopping.set
    bench.agent.keep_hearing()
    assert not bench.agent.soon.is_set()
    bench.step()
    assert bench.agent.metrics.view.xids == {("GPU-a", 31): 100}


def test_no_storm_at_all_makes_samples_follow_each_other_at_once(bench: Bench) -> None:
    """Whatever wakes the loop, and however often."""

    class Storm(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            return True

    class Pause(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            bench.now += timeout or 0.0
            return False

    bench.step()
    began = bench.now
    bench.agent.soon, bench.agent.stopping = Storm(), Pause()
    bench.driver.answers = [*[reading()] * 10, reading(must_restart=True)]
    assert bench.agent.run() == 1
    assert bench.now - began == pytest.approx(10 * LEAST_SECONDS)


def test_the_heart_does_not_wait_for_notices(bench: Bench) -> None:
    """With an API server that takes four seconds for each of 64 events, beats are as often as ever."""
    beats = []
    events = "/api/v1/namespaces/default/events"

    def beat(handler: Handler) -> None:
        beats.append(bench.now)
        reply(200, {})(handler)

    def slow(handler: Handler) -> None:
        bench.now += 4.0
        reply(201, {})(handler)

    bench.server.script("PATCH", LEASE, beat)
    bench.server.script("POST", events, slow)
    for n in range(WAITING):
        bench.agent.notices.add(Notice(held(f"p{n}"), "GPU-a", OVER, "Too much."))
    bench.agent._wake.set()
    while bench.agent._wake.is_set():
        bench.agent._wake.clear()
        bench.agent._ticked = bench.now
        bench.agent.tell()
    assert sum(r.path == events for r in bench.server.requests) == WAITING
    assert max(b - a for a, b in pairwise([*beats, bench.now])) <= BEAT_SECONDS + 4.0


def test_a_reading_that_flaps_is_seldom_told(bench: Bench) -> None:
    """Figures that are told every other second, and a dying card's words that change: a few reports a minute."""
    bench.step()
    whole, blind = card(used_mib=700, utilization=50), card(used_mib=None, utilization=None)
    bench.driver.answers = [*[reading(whole), reading(blind)] * 30, reading(whole)]
    assert [bench.step() for _ in range(60)][-1] <= 3
    before = bench.reports()
    said = [card(used_mib=None, utilization=None, healthy=False, reason=reason) for reason in ("a", "b")]
    bench.driver.answers = [reading(each) for _ in range(30) for each in said]
    assert bench.step() == before + 1, "that it died is told at once"
    assert [bench.step() for _ in range(59)][-1] <= before + 3


def test_a_view_does_not_change_afterwards(bench: Bench) -> None:
    """Threads of HTTP read it while the next sample is taken."""
    bench.step()
    view = bench.agent.metrics.view
    before = dict(view.xids), dict(view.events)
    bench.agent.health.heard(Event("GPU-a", EventKind.XID, 31))
    bench.agent.observer.counts[OVER] += 1
    bench.step()
    assert (view.xids, view.events) == before
