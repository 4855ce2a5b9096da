"""Which pod and container a process on the host belongs to: `/proc/PID/cgroup`, and no runtime's socket.

The kubelet names a pod's cgroup after its UID, whatever the driver, the runtime and the cgroup version. So the UID is
searched for anywhere in a path: an agent with a cgroup namespace of its own reads paths that begin with `/../..`.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# A UID with dashes (cgroupfs) or underscores (systemd); 32 digits without either are a static pod's own hash.
POD: Final = re.compile(
    r"pod([0-9a-f]{8}([-_])[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12}|[0-9a-f]{32})(?=[./:]|$)"
)
CONTAINER: Final = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?=/|$)")


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a process is. `pod`: its UID, "" if it belongs to no pod. `container`: the runtime's id, "" if not known.

    `cgroup` is the container's (else the pod's) own directory below the root of cgroups, as the agent reads it.
    """

    pod: str = ""
    container: str = ""
    cgroup: str = ""


NOBODY: Final = Owner()
AGAIN: Final = 5


def owner_in(text: str) -> Owner:
    """Return the owner that the content of `/proc/PID/cgroup` names.

    Version 2 has one line; version 1 has one for each controller, and a host with both has a line `0::/` that says
    nothing. The first line that names a pod counts.
    """
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        if pod := POD.search(path):
            inside = CONTAINER.search(path, pod.end())
            end = path.find("/", inside.end() if inside else pod.end())
            return Owner(pod[1].replace("_", "-"), inside[1] if inside else "", path if end < 0 else path[:end])
    return NOBODY


def owner_of(pid: int, proc: Path = Path("/proc")) -> Owner:
    """Return whose a process is; one that has ended meanwhile, or that may not be read, is nobody's."""
    try:
        with open(f"{proc}/{pid}/cgroup", errors="replace") as file:  # noqa: PTH123  # asked often
            return owner_in(file.read())
    except OSError:
        return NOBODY


class Owners:
    """Owners of processes, read once for each process that belongs to a pod.

    A number that was not asked about last time is read anew: the process that had it before may have ended. Nobody's
    is read again every so many times: it may have been on its way into a container.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known: dict[int, Owner] = {}
        self._turn = 0

    def of(self, pids: set[int]) -> dict[int, Owner]:
        """Return the owner of each of these processes, and forget all others."""
        self._turn += 1
        self._known = {pid: self._owner(pid) for pid in pids}
        return self._known

    def _owner(self, pid: int) -> Owner:
        known = self._known.get(pid)
        again = known == NOBODY and (self._turn + pid) % AGAIN == 0  # not all in the same turn
        return owner_of(pid, self._proc) if known is None or again else known
