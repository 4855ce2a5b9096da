"""Pods a second through kube-scheduler, with the extender and without it: `python -m tests.e2e.bench_throughput`.

The same thousand pods and nodes and the same scheduler configuration, from which one side only lacks the extender;
the client's limits are raised on both. The sides take turns, round by round, and the medians are compared.
"""

import argparse
import re
import statistics
import time
from pathlib import Path
from typing import Any, Final

import yaml

from tests.e2e.controlplane.cluster import ControlPlane
from tests.e2e.controlplane.ports import HeldPort
from tests.e2e.controlplane.process import Process
from tests.e2e.controlplane.waiting import wait_until
from tests.e2e.scene import add_nodes, batch, control_plane, create, extender, machines, scheduler_configuration

LIMITS: Final = {"qps": 5000, "burst": 5000}
POLL_SECONDS: Final = 0.2
PODS_PATH: Final = "/api/v1/namespaces/default/pods"
SIDES: Final = ("with the extender", "without")


def main() -> None:
    """Run the rounds and print pods a second by round, the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    with control_plane() as plane, HeldPort() as port:
        add_nodes(plane, machines(asked.nodes))
        service = extender(plane, port)
        shipped = scheduler_configuration(plane, "config.yaml", port)
        pods = batch(4 * asked.pods)[: asked.pods]
        for number in range(asked.rounds):
            for side in SIDES:
                chosen = configuration(shipped, extended=side == SIDES[0])
                found, cpu = rate(plane, service, chosen, pods)
                rates[side].append(found)
                spent = ", ".join(f"{name} {1000 * seconds:.1f}" for name, seconds in cpu.items())
                print(f"round {number + 1}, {side}: {found:.1f} pods/s; CPU ms a pod: {spent}", flush=True)
    medians = {side: statistics.median(found) for side, found in rates.items()}
    print(f"median {medians[SIDES[0]]:.1f} pods/s with the extender, {medians[SIDES[1]]:.1f} without", end=", ")
    print(f"ratio {medians[SIDES[0]] / medians[SIDES[1]]:.2f}")


def configuration(shipped: Path, *, extended: bool) -> Path:
    """Write the shipped configuration with higher limits, with or without its extender."""
    said = yaml.safe_load(shipped.read_text()) | {"clientConnection": dict(LIMITS)}
    said["leaderElection"] = {"leaderElect": False}  # or each start would wait for the last one's lease
    if not extended:
        del said["extenders"]
    path = shipped.with_name(f"bench-{extended}.yaml")
    path.write_text(yaml.safe_dump(said))
    return path


def rate(
    plane: ControlPlane, service: Process, chosen: Path, pods: list[dict[str, Any]]
) -> tuple[float, dict[str, float]]:
    """Return the pods a second that a new scheduler binds, from the first to the last, and CPU seconds by process."""
    create(plane, pods)
    with plane.start_scheduler(chosen) as scheduler:
        watched = (scheduler, plane.apiserver, plane.etcd, service)
        before = [_cpu(process) for process in watched]
        counts = [(time.perf_counter(), 0)]

        def all_bound() -> bool:
            found = re.search(
                r'^scheduler_schedule_attempts_total\{[^}]*result="scheduled"[^}]*\} (\d+)',
                plane.scrape(scheduler),
                re.MULTILINE,
            )
            counts.append((time.perf_counter(), int(found[1]) if found else 0))
            time.sleep(POLL_SECONDS)
            return counts[-1][1] >= len(pods)

        wait_until(all_bound, "every pod is bound", 600)
        cpu = {p.name: (_cpu(p) - was) / len(pods) for p, was in zip(watched, before, strict=True)}
    begun = next(i for i, (_, count) in enumerate(counts) if count)
    start, first = counts[begun - 1] if counts[begun][1] > len(pods) // 20 else counts[begun]
    end, last = counts[-1]
    plane.request("DELETE", f"{PODS_PATH}?gracePeriodSeconds=0")
    wait_until(lambda: '"items":[]' in plane.request("GET", PODS_PATH), "all pods are gone", 120)
    time.sleep(2)  # for the extender's watch
    return (last - first) / (end - start), cpu


def _cpu(process: Process) -> float:
    """Return the CPU seconds of a process so far."""
    return time.clock_gettime((~process.pid << 3) | 2)  # how Linux names the CPU clock of another process


if __name__ == "__main__":
    main()
