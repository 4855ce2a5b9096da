"""Limits of memory on the cgroups of pods and containers, in directories as the kubelet makes them."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from contract.inventory import Gpu
from nodeagent.limits import RETRY_SECONDS, SCAN_SECONDS, Limits, pod_directories
from nodeagent.pods import HeldPod
from nodeagent.reader import Event, LimitRefused, MemoryLimit, Reading
from tests.nodeagent.given import card, reading

UID = "0f7a1b2c-3d4e-4f50-8a6b-7c8d9e0f1a2b"
UNDER = UID.replace("-", "_")
ONE, TWO, SANDBOX = "a" * 64, "b" * 64, "c" * 64


@dataclass
class Driver:
    """A `Reader` that remembers limits, and says no when it is told to."""

    limits: dict[tuple[str, str], int] = field(default_factory=dict)
    refuses: str = ""
    sets: int = 0
    asked: int = 0
    hangs: str = ""  # a card whose calls wait until the test is over
    over: threading.Event = field(default_factory=threading.Event)

    def read(self, deadline_s: float) -> Reading:
        """Return one card."""
        return reading()

    def recall(self, known: Iterable[Gpu], wanted: Callable[[str], bool]) -> None:
        """Nothing is remembered here."""

    def wait_event(self, timeout_s: float) -> Event | None:
        """Nothing ever happens."""
        return None

    def memory_limit(self, uuid: str, cgroup: str) -> MemoryLimit | None:
        """Return what was set."""
        self.asked += 1
        if uuid == self.hangs:
            self.over.wait()
        return MemoryLimit(self.limits.get((cgroup, uuid)), 0)

    def set_memory_limit(self, uuid: str, cgroup: str, hard_mib: int | None) -> None:
        """Remember it, or refuse."""
        self.sets += 1
        if self.refuses:
            raise LimitRefused(self.refuses)
        if hard_mib is None:
            del self.limits[cgroup, uuid]
        else:
            self.limits[cgroup, uuid] = hard_mib

    def close(self) -> None:
        """Nothing to let go."""


class Bench:
    """A root of cgroups, a driver, and a clock that a test turns."""

    def __init__(self, root: Path, *, enforce: bool = True) -> None:
        self.now, self.root, self.driver = 0.0, root, Driver()
        self.read = reading(card("GPU-a", limits=True), card("GPU-b", limits=True))
        self.again(enforce=enforce)

    def again(self, *, enforce: bool = True) -> None:
        """Start the agent anew, on the same node."""
        self.limits = Limits(self.driver, self.root, enforce=enforce, clock=lambda: self.now)

    def step(self, *pods: HeldPod, seconds: float = SCAN_SECONDS) -> dict[tuple[str, str], int]:
        """Let time pass, step, and return the limits by path below the root and card."""
        self.now += seconds
        there = {pod.uid: pod for pod in pods}
        self.limits.step(self.read, there)
        for uuid, limited in self.limits._cards.items():
            assert uuid == self.driver.hangs or limited.worker.done.wait(10)
        self.limits.step(self.read, there)  # what the threads found
        return {(str(Path(p).relative_to(self.root)), c): mib for (p, c), mib in self.driver.limits.items()}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Return a bench on an empty root."""
    bench = Bench(tmp_path)
    yield bench
    bench.driver.over.set()


def pod(every: int = 1, names: dict[str, str] | None = None, **mib: int) -> HeldPod:
    """Return a pod whose containers were granted so many MiB of card a."""
    by_container = {name: {"GPU-a": of} for name, of in (mib or {"main": 4096}).items()}
    granted = {"GPU-a": sum(of["GPU-a"] for of in by_container.values())}
    return HeldPod("default", "p", UID, granted, by_container, names or {}, every)


LAYOUTS = {
    "systemd": f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDER}.slice",
    "systemd, guaranteed": f"kubepods.slice/kubepods-pod{UNDER}.slice",
    "cgroupfs": f"kubepods/burstable/pod{UID}",
    "cgroupfs, guaranteed": f"kubepods/pod{UID}",
    "kind": f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UNDER}.slice",
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_pods_are_found_in_every_layout(layout: str, tmp_path: Path) -> None:
    """By UID, whatever else lies beside; a folder of a user's is not looked into."""
    (tmp_path / layout / f"cri-containerd-{ONE}.scope").mkdir(parents=True)
    (tmp_path / "user.slice" / f"pod{UID.replace('0', '9')}").mkdir(parents=True)
    (tmp_path / "kubepods.slice").mkdir(exist_ok=True)
    assert pod_directories(tmp_path) == {UID: tmp_path / layout}
    assert pod_directories(tmp_path / "missing") == {}


def test_the_pod_is_limited_as_soon_as_it_is_there_and_each_container_then(bench: Bench) -> None:
    """Two containers get their own limits once the pod's status names them; the sandbox gets none."""
    group = bench.root / LAYOUTS["systemd"]
    asking = pod(2, trainer=3000, helper=1000)
    assert bench.step(asking) == {}
    for name in (ONE, TWO, SANDBOX):
        (group / f"cri-containerd-{name}.scope").mkdir(parents=True)
    key = (LAYOUTS["systemd"], "GPU-a")
    assert bench.step(asking) == {key: 4000}
    named = replace(asking, names={ONE: "trainer", TWO: "helper"})
    assert bench.step(named, seconds=0.0) == {
        key: 4000,
        (f"{key[0]}/cri-containerd-{ONE}.scope", "GPU-a"): 3000,
        (f"{key[0]}/cri-containerd-{TWO}.scope", "GPU-a"): 1000,
    }
    assert bench.limits.in_force == 3


def test_a_pods_only_container_does_not_wait_for_its_status(bench: Bench) -> None:
    """Its limit is there within one look at the directories."""
    (bench.root / LAYOUTS["cgroupfs"] / ONE).mkdir(parents=True)
    assert bench.step(pod())[f"{LAYOUTS['cgroupfs']}/{ONE}", "GPU-a"] == 4096


def test_a_limit_is_set_once_and_survives_the_agent(bench: Bench) -> None:
    """Looking again sets nothing, nor does an agent that starts anew; one that is another is put right."""
    (bench.root / LAYOUTS["cgroupfs"]).mkdir(parents=True)
    for _ in range(5):
        bench.step(pod())
    bench.again()
    assert bench.step(pod()) == {(LAYOUTS["cgroupfs"], "GPU-a"): 4096}
    assert bench.driver.sets == 1
    bench.driver.limits[str(bench.root / LAYOUTS["cgroupfs"]), "GPU-a"] = 1
    bench.again()
    assert bench.step(pod()) == {(LAYOUTS["cgroupfs"], "GPU-a"): 4096}


def test_with_limits_off_ours_are_taken_away_and_others_are_not(bench: Bench) -> None:
    """A limit that is just the grant is ours; any other is an administrator's."""
    (bench.root / LAYOUTS["cgroupfs"] / ONE).mkdir(parents=True)
    bench.step(pod())
    other = str(bench.root / LAYOUTS["cgroupfs"] / ONE), "GPU-a"
    bench.driver.limits[other] = 77
    bench.again(enforce=False)
    assert bench.step(pod()) == {(f"{LAYOUTS['cgroupfs']}/{ONE}", "GPU-a"): 77}
    assert bench.limits.in_force == 0
    assert bench.limits.condition(bench.read)[1:3] == ("False", "Off")


def test_one_hanging_card_holds_nobody_up(bench: Bench) -> None:
    """A call that never returns: the step does, the other card is limited, and nothing more is asked of the first."""
    (bench.root / LAYOUTS["cgroupfs"]).mkdir(parents=True)
    bench.driver.hangs = "GPU-a"
    both = replace(pod(), granted={"GPU-a": 4096, "GPU-b": 2048})
    for _ in range(3):
        assert bench.step(both, seconds=RETRY_SECONDS) == {(LAYOUTS["cgroupfs"], "GPU-b"): 2048}
    assert bench.driver.asked == 1 + 3, "the first card was asked once"


def test_a_late_card_is_not_asked(bench: Bench) -> None:
    """One that does not answer samples would not answer this; once it answers, it is limited."""
    (bench.root / LAYOUTS["cgroupfs"]).mkdir(parents=True)
    bench.read = reading(replace(card("GPU-a", limits=True), age_s=1.0))
    assert bench.step(pod()) == {}
    assert bench.driver.asked == 0
    bench.read = reading(card("GPU-a", limits=True))
    assert bench.step(pod()) == {(LAYOUTS["cgroupfs"], "GPU-a"): 4096}


def test_a_limit_that_went_is_set_again(bench: Bench) -> None:
    """Each is looked at every half minute; after a card was lost and came back, at once."""
    key = (LAYOUTS["cgroupfs"], "GPU-a")
    (bench.root / key[0]).mkdir(parents=True)
    assert bench.step(pod()) == {key: 4096}
    bench.driver.limits.clear()
    assert bench.step(pod(), seconds=RETRY_SECONDS - 0.1) == {}
    assert bench.step(pod(), seconds=SCAN_SECONDS) == {key: 4096}
    bench.driver.limits.clear()
    bench.read = reading(card("GPU-a", limits=True, lost=True))
    bench.step(pod())
    assert bench.limits.in_force == 0
    bench.read = reading(card("GPU-a", limits=True))
    assert bench.step(pod()) == {key: 4096}


def test_a_limit_that_cannot_be_set_again_is_not_in_force(bench: Bench) -> None:
    """A driver that says no after a reset: the condition and the number say so."""
    (bench.root / LAYOUTS["cgroupfs"]).mkdir(parents=True)
    bench.step(pod())
    bench.driver.limits.clear()
    bench.driver.refuses = "The driver says no."
    bench.step(pod(), seconds=RETRY_SECONDS)
    assert bench.limits.in_force == 0
    assert bench.limits.condition(bench.read)[2] == "Refused"


def test_a_grant_of_nothing_is_no_limit_of_nothing(bench: Bench) -> None:
    """A share of compute alone: a limit of 0 MiB would let the pod start nothing."""
    (bench.root / LAYOUTS["cgroupfs"] / ONE).mkdir(parents=True)
    assert bench.step(pod(main=0)) == {}
    assert bench.driver.asked == 0


def test_the_last_pod_takes_its_limits_along(bench: Bench) -> None:
    """Where no pod is left, no limit is in force."""
    folder = bench.root / LAYOUTS["cgroupfs"]
    folder.mkdir(parents=True)
    bench.step(pod())
    folder.rmdir()
    bench.step()
    assert bench.limits.in_force == 0


def test_a_cgroup_that_goes_takes_its_limit_along(bench: Bench) -> None:
    """It is forgotten; nothing is asked of the driver for a directory that is not there."""
    folder = bench.root / LAYOUTS["cgroupfs"]
    folder.mkdir(parents=True)
    bench.step(pod())
    folder.rmdir()
    bench.step(pod())
    assert (bench.limits.in_force, bench.driver.sets) == (0, 1)


def test_cards_that_cannot_be_limited_are_left_alone(bench: Bench) -> None:
    """In MIG mode, lost, or of an older driver: no call, and the condition says what is observed only."""
    (bench.root / LAYOUTS["cgroupfs"]).mkdir(parents=True)
    for left_alone in (card("GPU-a"), card("GPU-a", limits=True, mig=True), card("GPU-a", limits=True, lost=True)):
        bench.read = reading(left_alone)
        assert bench.step(pod()) == {}
    assert bench.limits.condition(reading(card("GPU-a")))[1:3] == ("False", "NotSupported")
    mixed = reading(card("GPU-a", limits=True), card("GPU-b"))
    assert bench.limits.condition(mixed)[1:3] == ("False", "SomeCards")


def test_a_refusal_is_shown_and_tried_again(bench: Bench) -> None:
    """The condition has the driver's sentence until it works, half a minute later at the soonest."""
    (bench.root / LAYOUTS["cgroupfs"]).mkdir(parents=True)
    bench.step()
    assert bench.limits.condition(bench.read)[1:3] == ("True", "Limits")
    bench.driver.refuses = "The driver says no."
    bench.step(pod())
    assert bench.limits.condition(bench.read)[1:] == ("False", "Refused", "The driver says no.")
    bench.driver.refuses = ""
    bench.step(pod(), seconds=RETRY_SECONDS - 0.1)
    assert bench.driver.sets == 1
    bench.step(pod(), seconds=SCAN_SECONDS)
    assert bench.limits.condition(bench.read)[1:3] == ("True", "Limits")


def running(uid: str = UID, granted: int = 4096) -> HeldPod:
    """Return a pod whose status names its container."""
    return replace(pod(main=granted), uid=uid, names={ONE: "main"})


@pytest.mark.parametrize("elsewhere", ["mypods/kubepods", "memory/kubepods"], ids=["--cgroup-root", "cgroup v1"])
def test_a_pod_whose_cgroup_is_not_found_is_not_limited(elsewhere: str, bench: Bench) -> None:
    """The condition says so at the second look, for as long as the pod runs."""
    (bench.root / elsewhere / f"pod{UID}" / ONE).mkdir(parents=True)
    bench.step(running())
    assert bench.limits.condition(bench.read)[1] == "True"
    assert bench.step(running()) == {}
    said = f"Pods that run, but whose cgroup is not found below {bench.root}: 1. Use is observed."
    assert bench.limits.condition(bench.read)[1:] == ("False", "NoCgroup", said)
    (bench.root / LAYOUTS["cgroupfs"]).mkdir(parents=True)
    bench.step(running())
    assert bench.limits.condition(bench.read)[1:3] == ("True", "Limits")


def test_a_pod_that_does_not_run_yet_needs_no_cgroup(bench: Bench) -> None:
    """Bound, with its image being pulled, for however long; nor is a node without pods in doubt."""
    for asked in ((), (pod(),), (pod(),), (pod(),)):
        bench.step(*asked)
        assert bench.limits.condition(bench.read)[1] == "True"


def test_without_the_pods_nothing_is_limited(bench: Bench) -> None:
    """An agent that may not list them does not know what to limit."""
    bench.limits.step(bench.read, None)
    assert bench.limits.condition(bench.read)[1:3] == ("False", "NoPods")


def test_a_wrong_root_shows_before_the_first_grant(bench: Bench) -> None:
    """Where no pod at all is found, one without a grant tells; beside others that are found, it does not matter."""
    alone = running("the-agent", granted=0)
    for _ in range(2):
        bench.step(alone)
    assert bench.limits.condition(bench.read)[2] == "NoCgroup"
    (bench.root / LAYOUTS["cgroupfs"]).mkdir(parents=True)
    for _ in range(2):
        bench.step(alone, running())
    assert bench.limits.condition(bench.read)[2] == "Limits"


def test_real_cgroups_if_this_machine_lets_us(bench: Bench) -> None:
    """The same in the kernel's own file system, where directories have files that cannot be deleted."""
    root = Path(f"/sys/fs/cgroup/tessera-test-{os.getpid()}")
    group = root / "kubepods" / f"pod{UID}" / ONE
    made = [root, root / "kubepods", group.parent, group]
    try:
        for folder in made:
            folder.mkdir()
    except OSError:
        for folder in reversed(made):
            if folder.is_dir():
                folder.rmdir()
        pytest.skip("cgroups cannot be made here")
    try:
        real = Bench(root)
        assert real.step(pod()) == {
            (f"kubepods/pod{UID}", "GPU-a"): 4096,
            (f"kubepods/pod{UID}/{ONE}", "GPU-a"): 4096,
        }
    finally:
        for folder in reversed(made):
            folder.rmdir()
