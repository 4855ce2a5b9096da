"""Which pod and container a process belongs to, in every form that cgroup paths take."""

from pathlib import Path

import pytest

from nodeagent.processes import AGAIN, NOBODY, Owner, Owners, owner_in, owner_of

UID = "0f7a1b2c-3d4e-4f50-8a6b-7c8d9e0f1a2b"
UNDER = UID.replace("-", "_")
STATIC = "d41d8cd98f00b204e9800998ecf8427e"
ID = "9c3fb1a0" * 8

SYSTEMD = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDER}.slice"
CGROUPFS = f"/kubepods/burstable/pod{UID}"
KIND = "/system.slice/docker-" + "ab" * 32 + ".scope"

FORMS = {
    "v2, systemd, containerd": (f"0::{SYSTEMD}/cri-containerd-{ID}.scope", UID, ID),
    "v2, systemd, guaranteed": (f"0::/kubepods.slice/kubepods-pod{UNDER}.slice/cri-containerd-{ID}.scope", UID, ID),
    "v2, systemd, CRI-O": (f"0::{SYSTEMD}/crio-{ID}.scope", UID, ID),
    "v2, systemd, CRI-O with a folder inside": (f"0::{SYSTEMD}/crio-{ID}.scope/container", UID, ID),
    "v2, systemd, docker": (f"0::{SYSTEMD}/docker-{ID}.scope", UID, ID),
    "v2, cgroupfs, containerd": (f"0::{CGROUPFS}/{ID}", UID, ID),
    "v2, cgroupfs, besteffort": (f"0::/kubepods/besteffort/pod{UID}/{ID}", UID, ID),
    "v2, cgroupfs, CRI-O": (f"0::{CGROUPFS}/crio-{ID}", UID, ID),
    "v2, a process in the pod's own group": (f"0::{SYSTEMD}", UID, ""),
    "v2, a group that the container made": (f"0::{CGROUPFS}/{ID}/init.scope/worker", UID, ID),
    "v2, seen from a cgroup namespace": (f"0::/../../kubepods-burstable-pod{UNDER}.slice/crio-{ID}.scope", UID, ID),
    "v1, systemd, containerd": (f"12:memory:{SYSTEMD}/cri-containerd-{ID}.scope\n11:devices:/x", UID, ID),
    "v1, cgroupfs, docker": (f"9:cpu,cpuacct:{CGROUPFS}/{ID}\n8:pids:{CGROUPFS}/{ID}", UID, ID),
    "v1, containerd with colons": (
        f"4:freezer:/system.slice/containerd.service/kubepods-besteffort-pod{UNDER}.slice:cri-containerd:{ID}",
        UID,
        ID,
    ),
    "v1 beside v2 that says nothing": (f"0::/\n3:memory:{CGROUPFS}/{ID}", UID, ID),
    "v1, a named hierarchy": (f"1:name=systemd:{SYSTEMD}/docker-{ID}.scope", UID, ID),
    "kind, kubelet's own root": (
        f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
        f"kubelet-kubepods-burstable-pod{UNDER}.slice/cri-containerd-{ID}.scope",
        UID,
        ID,
    ),
    "kind, inside the node's container": (f"0::{KIND}{SYSTEMD}/cri-containerd-{ID}.scope", UID, ID),
    "kind, v1, cgroupfs": (f"5:memory:/docker/{'cd' * 32}/kubelet/kubepods/burstable/pod{UID}/{ID}", UID, ID),
    "a static pod": (f"0::/kubepods/burstable/pod{STATIC}/{ID}", STATIC, ID),
    "a static pod, systemd": (f"0::/kubepods.slice/kubepods-pod{STATIC}.slice/crio-{ID}.scope", STATIC, ID),
}

FOREIGN = {
    "a login session": "0::/user.slice/user-1000.slice/session-3.scope",
    "a service": "0::/system.slice/nvidia-persistenced.service",
    "the root": "0::/",
    "docker without Kubernetes": f"0::/system.slice/docker-{ID}.scope",
    "podman": f"0::/machine.slice/libpod-{ID}.scope",
    "a folder of that name": "0::/user.slice/podcast-0f7a1b2c.slice",
    "dashes and underscores mixed": f"0::/kubepods/pod{UID.replace('-', '_', 1)}/{ID}",
    "v1, many lines": "12:memory:/user.slice\n11:devices:/user.slice\n0::/user.slice",
    "nothing": "",
}


@pytest.mark.parametrize(("text", "pod", "container"), FORMS.values(), ids=FORMS)
def test_every_form_names_its_pod_and_container(text: str, pod: str, container: str) -> None:
    """The UID comes back with dashes, the container as the runtime's id alone."""
    owner = owner_in(text + "\n")
    assert (owner.pod, owner.container) == (pod, container)


@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN)
def test_what_names_no_pod_belongs_to_nobody(text: str) -> None:
    """Processes of the host, and of containers that the kubelet did not start, are foreign."""
    assert owner_in(text) == NOBODY


def test_the_cgroup_is_the_containers_own() -> None:
    """What the container made inside is cut off; without a container it is the pod's."""
    inside = owner_in(f"0::{SYSTEMD}/crio-{ID}.scope/container/worker")
    assert inside.cgroup == f"{SYSTEMD}/crio-{ID}.scope"
    assert owner_in(f"0::{CGROUPFS}/{ID}").cgroup == f"{CGROUPFS}/{ID}"
    assert owner_in(f"0::{SYSTEMD}/init").cgroup == SYSTEMD


def process(proc: Path, pid: int, text: str) -> None:
    """Let a process be there."""
    (proc / str(pid)).mkdir(exist_ok=True)
    (proc / str(pid) / "cgroup").write_text(text)


def test_a_process_that_has_ended_is_nobodys(tmp_path: Path) -> None:
    """Between the driver's answer and ours it may go, or it may lie behind another's rights."""
    process(tmp_path, 7, f"0::{CGROUPFS}/{ID}")
    assert owner_of(7, tmp_path) == Owner(UID, ID, f"{CGROUPFS}/{ID}")
    assert owner_of(8, tmp_path) == NOBODY


def test_a_number_used_again_is_read_again(tmp_path: Path) -> None:
    """An owner is remembered while its process is seen, and no longer."""
    owners = Owners(tmp_path)
    process(tmp_path, 7, f"0::{CGROUPFS}/{ID}")
    assert owners.of({7})[7].pod == UID
    process(tmp_path, 7, "0::/user.slice")
    assert owners.of({7})[7].pod == UID
    assert owners.of(set()) == {}
    assert owners.of({7}) == {7: NOBODY}


def test_nobodys_process_is_looked_at_again(tmp_path: Path) -> None:
    """One that reaches its container, or can be read, a little later is its pod's within a few turns."""
    owners = Owners(tmp_path)
    process(tmp_path, 7, "0::/user.slice")
    assert owners.of({7, 8}) == {7: NOBODY, 8: NOBODY}
    for pid in (7, 8):
        process(tmp_path, pid, f"0::{CGROUPFS}/{ID}")
    for _ in range(AGAIN):
        found = owners.of({7, 8})
    assert {pid: owner.pod for pid, owner in found.items()} == {7: UID, 8: UID}
