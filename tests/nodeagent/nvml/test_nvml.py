"""What the agent reads of a node, through the real bindings: nothing wrong, nothing missing, whatever fails."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from contract.inventory import Gpu, MigInstance, MigProfile
from nodeagent.reader import Card, Driver, Process, Reading, Recovery
from tests.nodeagent.fakenvml import SYSTEM, Node, Value, card, uuid
from tests.nodeagent.nvml.conftest import Driver as Load
from tests.nodeagent.nvml.conftest import Readers

SOON = 5.0  # a deadline that nothing here reaches
MIG = ("MIG-1 1 0 2 4 4 3 60 40448 30000", "-", "MIG-2 7 0 0 0 1 1 16 9984 12")


def one(reading: Reading) -> Card:
    (found,) = reading.cards
    return found


def test_everything(node: Node, readers: Readers) -> None:
    """Two cards on an NVLink switch, one of them busy."""
    used: dict[str, Value] = {
        "mem_used": "41500Mi",
        "util_gpu": 63,
        "proc": ("41 30100 C 50 18", "42 -1 G 0 0", "41 64 M 0 0"),
    }
    links: dict[str, Value] = {"nvlink": ("0 switch", "3 switch")}
    node.write(card(0, numa=1, ecc_uncorrected_volatile=3, **used, **links), card(1, **links))
    reading = readers().read(SOON)
    assert reading.driver == Driver("580.126.09", "13.0")
    assert (reading.faults, reading.must_restart) == ((), False)
    busy, idle = reading.cards
    assert busy.gpu == Gpu(
        uuid(0),
        index=0,
        model="NVIDIA H100 80GB HBM3",
        memory_mib=81559,
        reserved_mib=551,
        numa_node=1,
        pci_bus_id="0000:10:00.0",
        nvlink=(uuid(1),),
        used_mib=41500,
        utilization=63,
    )
    assert set(busy.processes or ()) == {Process(41, 30100, 50), Process(42, None, 0)}
    assert (busy.ecc_uncorrected, busy.repair_pending, busy.recovery) == (3, False, Recovery.NONE)
    assert (idle.processes, idle.gpu.used_mib, idle.gpu.utilization) == ((), 0, 0)
    assert (busy.failed, idle.failed) == ((), ())


def test_direct_links(node: Node, readers: Readers) -> None:
    """A bridge connects two cards of three."""
    node.write(card(0, nvlink=("0 2",)), card(1), card(2, nvlink=("0 0",)))
    assert [each.gpu.nvlink for each in readers().read(SOON).cards] == [(uuid(2),), (), (uuid(0),)]


def test_mig(node: Node, readers: Readers) -> None:
    """MIG devices with their places, past a hole in the range of indices; what a card can be cut into."""
    node.write(card(0, mig_mode=1, mem_used="30012Mi", mig=MIG, proc=("41 29990 C 0 0 1 0", "42 5 C 0 0 7 0")))
    reading = readers().read(SOON)
    assert one(reading).gpu.mig
    assert one(reading).gpu.utilization is None, "the driver tells none in MIG mode"
    assert one(reading).gpu.mig_instances == (
        MigInstance("MIG-1", "3g.40gb", 1, 0, 4, 40448, 30000),
        MigInstance("MIG-2", "1g.10gb", 7, 0, 0, 9984, 12),
    )
    assert one(reading).processes == (Process(41, 29990, None, "MIG-1"), Process(42, 5, None, "MIG-2"))
    model = "NVIDIA H100 80GB HBM3"
    assert MigProfile(model, 9, "3g.40gb", 3, 40448, 2, (0, 4), 4) in reading.profiles
    assert {profile.name for profile in reading.profiles} == {
        *("1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
    }


def test_mig_is_cut_anew(node: Node, readers: Readers) -> None:
    """Other instances, then none, are seen at the next reading, also between slow readings."""
    reader = readers(slow_every_s=3600.0)
    node.write(card(0, mig_mode=1, mig=MIG))
    assert [mig.profile for mig in one(reader.read(SOON)).gpu.mig_instances] == ["3g.40gb", "1g.10gb"]
    node.write(card(0, mig_mode=1, mig=("MIG-3 0 0 4 0 8 7 132 80896 0",)))
    assert [mig.uuid for mig in one(reader.read(SOON)).gpu.mig_instances] == ["MIG-3"]
    node.write(card(0))
    reading = reader.read(SOON)
    assert (one(reading).gpu.mig, one(reading).gpu.mig_instances, reading.profiles) == (False, (), ())


def test_mig_without_root(node: Node, readers: Readers) -> None:
    """Without privileges the places are not told, and the instances tell the processes; nothing is wrong, or zero."""
    denied = {
        "error.nvmlDeviceGetMemoryInfo_v2": "NO_PERMISSION",
        "error.nvmlDeviceGetMemoryInfo": "NO_PERMISSION",
    }
    node.write(card(0, mig_mode=1, mig=MIG) | denied, system={**SYSTEM, "privileged": 0})
    found = one(readers().read(SOON))
    assert [(mig.profile, mig.start, mig.used_mib) for mig in found.gpu.mig_instances] == [
        ("3g.40gb", None, None),
        ("1g.10gb", None, None),
    ]
    assert (found.gpu.memory_mib, found.gpu.used_mib, found.failed) == (None, None, ())


@pytest.mark.parametrize("version", ["_v3", "_v2"])
def test_processes_that_are_not_told(version: str, driver: Load, readers: Readers) -> None:
    """A card that keeps its CUDA processes to itself does not look idle because the other lists are empty."""
    node = driver([] if version == "_v3" else ["nvmlDeviceGetComputeRunningProcesses_v3"])
    denied = [f"error.nvmlDeviceGetComputeRunningProcesses{each}" for each in ("_v3", "_v2")]
    node.write(card(0, proc=("41 30100 C 50 18",)) | dict.fromkeys(denied, "NO_PERMISSION"))
    assert one(readers().read(SOON)).processes is None


def test_unified_memory(node: Node, readers: Readers) -> None:
    """A card that shares the host's memory has no figures, and is well."""
    off = ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMigMode")
    node.write(card(0, name="NVIDIA GB10") | {f"error.{name}": "NOT_SUPPORTED" for name in off})
    found = one(readers().read(SOON))
    assert (found.gpu.memory_mib, found.gpu.used_mib, found.gpu.reserved_mib) == (None, None, 0)
    assert (found.gpu.healthy, found.failed) == (True, ())


# --- what old drivers lack --------------------------------------------------------------------------------

OPTIONAL: dict[str, Callable[[Card], bool]] = {
    "nvmlDeviceGetPciInfo_v3": lambda card: card.gpu.pci_bus_id == "",
    "nvmlDeviceGetMemoryAffinity": lambda card: card.gpu.numa_node is None,
    "nvmlDeviceGetUtilizationRates": lambda card: card.gpu.utilization is None,
    "nvmlDeviceGetMigMode": lambda card: not card.gpu.mig,
    "nvmlDeviceGetTotalEccErrors": lambda card: card.ecc_uncorrected is None,
    "nvmlDeviceGetRemappedRows": lambda card: card.repair_pending is False,  # of the pages
    "nvmlDeviceGetNvLinkState": lambda card: card.gpu.nvlink == (),
    "nvmlDeviceGetNvLinkRemoteDeviceType": lambda card: card.gpu.nvlink == (),
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": lambda card: card.gpu.nvlink == (),
    "nvmlDeviceGetFieldValues": lambda card: card.recovery is None,
    "nvmlDeviceGetMemoryLimits_v1": lambda card: not card.limits,
    "nvmlDeviceGetProcessUtilization": lambda card: card.processes == (Process(41, 100, None),),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": lambda card: card.processes == (Process(41, 100, 50),),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": lambda card: card.processes == (Process(41, 100, 50),),
    "nvmlDeviceGetComputeRunningProcesses_v3": lambda card: card.processes == (Process(41, 100, 50),),  # _v2 has them
    "nvmlDeviceGetMemoryInfo_v2": lambda card: (card.gpu.used_mib, card.gpu.reserved_mib) == (651, 0),
}
FULL = card(0, proc=("41 100 C 50 0",), mem_used="100Mi", memory_limits=1, nvlink=("0 switch",))


@pytest.mark.parametrize("missing", OPTIONAL)
def test_a_driver_older_than_a_call(missing: str, driver: Load, readers: Readers) -> None:
    """Each optional function may be missing; then its fact is absent and the rest is as it was."""
    node = driver([missing])
    node.write(FULL)
    found = one(readers().read(SOON))
    assert OPTIONAL[missing](found)
    assert (found.gpu.healthy, found.failed) == (True, ())
    assert found.gpu.memory_mib == 81559


def test_nothing_optional_at_all(driver: Load, readers: Readers) -> None:
    """A driver with none of them still has cards with memory."""
    node = driver([*OPTIONAL, "nvmlSystemGetCudaDriverVersion_v2", "nvmlDeviceGetComputeRunningProcesses_v2"])
    node.write(FULL)
    reading = readers().read(SOON)
    assert reading.driver == Driver("580.126.09", "")
    assert (one(reading).gpu.memory_mib, one(reading).gpu.used_mib, one(reading).failed) == (81559, 651, ())


@pytest.mark.parametrize("error", ["NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND"])
def test_every_call_refused(error: str, node: Node, readers: Readers) -> None:
    """A card that tells its name and nothing else is reported as such; no figure is invented."""
    refused = {f"error.{name}": error for name in [*OPTIONAL, "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo"]}
    refused |= {
        f"error.nvmlDeviceGet{kind}RunningProcesses_v2": error for kind in ("Compute", "Graphics", "MPSCompute")
    }
    refused["error.nvmlDeviceGetRetiredPagesPendingStatus"] = error
    node.write(card(0) | refused)
    found = one(readers().read(SOON))
    assert found == Card(Gpu(uuid(0)), processes=None)


@pytest.mark.parametrize("name", ["nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMemoryInfo_v2"])
def test_a_call_that_goes_wrong_once(name: str, node: Node, readers: Readers) -> None:
    """An unknown error changes no fact that does not change; a figure that does is absent."""
    reader = readers()
    node.write(card(0, mem_used="100Mi"))
    before = one(reader.read(SOON)).gpu
    node.write(card(0, mem_used="100Mi") | {f"error.{name}": "UNKNOWN"})
    found = one(reader.read(SOON))
    assert replace(found.gpu, used_mib=100) == before
    assert found.gpu.used_mib is None or "Memory" not in name
    assert (found.failed != ()) == ("Memory" in name)


# --- cards that are in trouble ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "lost", "reason"),
    [
        ("GPU_IS_LOST", True, "The driver has lost the card."),
        ("RESET_REQUIRED", False, "The card must be reset before it can be used again."),
        ("NO_PERMISSION", False, "The driver does not let the agent read the card."),
        ("UNKNOWN", False, "The driver says: Unknown Error."),
    ],
)
def test_a_bad_card_hides_no_other(error: str, lost: bool, reason: str, node: Node, readers: Readers) -> None:
    """A card that fails is told under its name with what was last known, and comes back; the others are read."""
    reader = readers()
    node.write(card(0), card(1, mem_used="5Mi"), card(2))
    before = reader.read(SOON)
    node.write(card(0), card(1, **{"error.*": error}), card(2, util_gpu=9))
    reading = reader.read(SOON)
    first, bad, last = reading.cards
    assert first == before.cards[0]
    assert last.gpu.utilization == 9
    assert (bad.gpu.uuid, bad.lost, bad.gpu.healthy, bad.gpu.reason) == (uuid(1), lost, False, reason)
    assert (bad.gpu.memory_mib, bad.gpu.used_mib, bad.processes) == (81559, None, None)
    node.write(card(0), card(1, mem_used="5Mi"), card(2))
    assert reader.read(SOON) == before


def test_a_card_that_is_lost_under_the_reading(node: Node, readers: Readers) -> None:
    """A card that still tells its name, but is lost at a later call, is lost."""
    node.write(card(0, error__nvmlDeviceGetMemoryInfo_v2="GPU_IS_LOST"))
    reader = readers()
    reader.recall([Gpu(uuid(0), memory_mib=5)], lambda _: True)
    found = one(reader.read(SOON))
    assert (found.lost, found.gpu.reason, found.gpu.memory_mib) == (True, "The driver has lost the card.", 5)


def test_a_card_that_never_told_its_name(node: Node, readers: Readers) -> None:
    """It cannot be in the inventory; the reading says that it is there."""
    node.write(card(0, **{"error.*": "GPU_IS_LOST"}), card(1))
    reading = readers().read(SOON)
    assert [each.gpu.uuid for each in reading.cards] == [uuid(1)]
    assert reading.faults == ("Card 0 cannot be read: The driver has lost the card.",)


def test_a_card_that_is_gone(node: Node, readers: Readers) -> None:
    """A card that vanished is lost under its last UUID, also to an agent that started since."""
    reader = readers()
    node.write(card(0), card(1))
    known = [each.gpu for each in reader.read(SOON).cards]
    node.write(card(1))
    later = readers()
    later.recall(known, lambda _: True)
    for each in (reader, later):
        there, gone = sorted(each.read(SOON).cards, key=lambda card: card.lost)
        assert (there.gpu.uuid, there.gpu.index, there.lost) == (uuid(1), 0, False)
        assert (gone.gpu.uuid, gone.lost, gone.gpu.reason) == (uuid(0), True, "The card is gone.")


def test_indices_swapped(node: Node, readers: Readers) -> None:
    """After a reboot with another order the facts follow the UUIDs."""
    reader = readers(slow_every_s=3600.0)
    first, second = card(0, mem_used="1Mi"), card(1, mem_used="2Mi")
    node.write(first, second)
    reader.read(SOON)
    node.write(second, first)
    cards = reader.read(SOON).cards
    assert [(each.gpu.index, each.gpu.uuid, each.gpu.used_mib) for each in cards] == [
        (0, uuid(1), 2),
        (1, uuid(0), 1),
    ]
    assert [each.gpu.pci_bus_id for each in cards] == ["0000:11:00.0", "0000:10:00.0"]


def test_a_call_that_hangs(node: Node, readers: Readers) -> None:
    """While a call on one card hangs for a minute, the others are read on time, and that one is told with its age."""
    reader = readers()
    node.write(card(0), card(1))
    before = reader.read(SOON)
    node.write(card(0, util_gpu=8), card(1, delay_ms__nvmlDeviceGetUtilizationRates=60_000))
    for _ in range(2):
        quick, slow = reader.read(2.0).cards
        assert (quick.gpu.utilization, quick.age_s) == (8, 0.0)
        assert slow.gpu == before.cards[1].gpu
        assert slow.age_s > 0


def test_a_card_that_hangs_from_the_start(node: Node, readers: Readers) -> None:
    """A card whose first call hangs, which initialises it, is told of without a name."""
    node.write(card(0, delay_ms__nvmlDeviceGetHandleByIndex_v2=60_000), card(1))
    reader = readers()
    reader.recall([Gpu(uuid(0), memory_mib=81559)], lambda _: True)
    reading = reader.read(2.0)
    assert reading.faults == ("Card 0 does not answer.",)
    assert [(each.gpu.uuid, each.lost) for each in reading.cards] == [(uuid(0), False), (uuid(1), False)]


# --- drivers that are in trouble --------------------------------------------------------------------------


def test_no_library(tmp_path: Path) -> None:
    """On a node without a driver the reading says so, again and again, and there is no exception."""
    (tmp_path / "libnvidia-ml.so.1").write_text("This machine may have a driver, so here is something that is none.")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    program = "from nodeagent.nvml import NvmlReader as R; r = R(); r.read(5); print(r.read(5).faults[0])"
    command = [sys.executable, "-c", program]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert told == "There is no NVIDIA driver library (libnvidia-ml.so.1) on this node.\n"


def test_no_driver_and_then_one(node: Node, readers: Readers) -> None:
    """A library without a driver is told; the cards are there as soon as the driver is."""
    (node.directory / "node.ini").unlink()
    reader = readers()
    reading = reader.read(SOON)
    assert (reading.cards, reading.faults) == ((), ("The NVIDIA driver is not loaded.",))
    node.write(card(0))
    assert one(reader.read(SOON)).gpu.memory_mib == 81559


@pytest.mark.parametrize(
    ("error", "must_restart"), [("DRIVER_NOT_LOADED", False), ("LIB_RM_VERSION_MISMATCH", True), ("UNKNOWN", False)]
)
def test_a_driver_that_goes_away(error: str, must_restart: bool, node: Node, readers: Readers) -> None:
    """Its cards are unhealthy with the driver's reason, and well again with it; a new driver needs a new process."""
    reader = readers()
    node.write(card(0))
    before = reader.read(SOON)
    node.write(card(0), system={**SYSTEM, "error.nvmlDeviceGetCount_v2": error, "error.nvmlInitWithFlags": error})
    reading = reader.read(SOON)
    assert reading.must_restart == must_restart
    assert (one(reading).gpu.healthy, one(reading).gpu.reason) == (False, reading.faults[0])
    node.write(card(0))
    assert reader.read(SOON) == before
