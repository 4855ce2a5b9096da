"""The fake driver is like a driver: to the bindings, to gpustat and to nvitop, which run on it unchanged."""

import ctypes
import inspect
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pynvml
import pytest

from tests.nodeagent.fakenvml import HERE, Node, Value, card, uuid
from tests.nodeagent.nvml.conftest import Driver

MIG = ("MIG-1 1 0 2 4 4 3 60 40448 30000", "MIG-2 7 0 0 0 1 1 16 9984 12")
UNIFIED = card(
    3,
    name="NVIDIA GB10",
    error__nvmlDeviceGetMemoryInfo="NOT_SUPPORTED",
    error__nvmlDeviceGetMemoryInfo_v2="NOT_SUPPORTED",
    error__nvmlDeviceGetMigMode="NOT_SUPPORTED",
)


def cards() -> list[dict[str, Value]]:
    me = os.getpid()
    return [
        card(0, util_gpu=63, mem_used="41500Mi", proc=(f"{me} 30100 C 50 18",)),
        card(1),
        card(2, mig_mode=1, mem_used="30400Mi", mig=MIG, proc=(f"{me} 29990 C 0 0 1 0",)),
        UNIFIED,
    ]


def run(node: Node, *command: str) -> str:
    """Run a tool of this environment on a node, and return what it printed; a complaint is a failure."""
    tool = str(Path(sys.executable).with_name(command[0]))
    ran = subprocess.run([tool, *command[1:]], env=node.environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout + ran.stderr
    return ran.stdout


def test_layouts_are_those_of_the_bindings(tmp_path: Path) -> None:
    """Every struct of the fake has the size that the bindings' has."""
    named = {
        "memory_v1": "c_nvmlMemory_t",
        "memory_v2": "c_nvmlMemory_v2_t",
        "process_v2": "c_nvmlProcessInfo_v2_t",
        "process_detail": "c_nvmlProcessDetail_v1_t",
        "process_details": "c_nvmlProcessDetailList_v1_t",
        "pci_info": "nvmlPciInfo_t",
        "attributes": "c_nvmlDeviceAttributes",
        "profile_v1": "c_nvmlGpuInstanceProfileInfo_t",
        "profile_v2": "c_nvmlGpuInstanceProfileInfo_v2_t",
        "placement": "c_nvmlGpuInstancePlacement_t",
        "gi_info": "c_nvmlGpuInstanceInfo_t",
        "field_value": "c_nvmlFieldValue_t",
        "sample_v1": "c_nvmlProcessUtilizationSample_t",
        "sample_v2": "c_nvmlProcessUtilizationInfo_v1_t",
        "samples_v2": "c_nvmlProcessesUtilizationInfo_v1_t",
        "temperature_v1": "c_nvmlTemperature_v1_t",
        "event": "c_nvmlEventData_t",
        "limits_set": "c_nvmlSetMemoryLimits_v1_t",
        "limits_get": "c_nvmlGetMemoryLimits_v1_t",
    }
    told = set(re.findall(r"^(?:typedef struct \{.*\}|\}) (\w+);", (HERE / "fake.h").read_text(), re.MULTILINE))
    assert told == set(named) | {"process_v1"}, "the bindings do not know the first layout of a process"
    source, program = tmp_path / "sizes.c", tmp_path / "sizes"
    prints = "".join(f'printf("{name} %zu\\n", sizeof({name}));' for name in named)
    source.write_text(f'#include "fake.h"\nint main(void) {{ {prints} return 0; }}')
    subprocess.run(["cc", f"-I{HERE}", "-o", program, source], check=True)
    sizes = dict(line.split() for line in subprocess.check_output([program], text=True).splitlines())
    assert {name: int(size) for name, size in sizes.items()} == {
        name: ctypes.sizeof(getattr(pynvml, theirs)) for name, theirs in named.items()
    }


def test_every_function_is_there(node: Node) -> None:
    """The bindings find whatever they look for, as on a driver of their own release."""
    library = ctypes.CDLL(str(node.library))
    asked = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', inspect.getsource(pynvml)))
    assert len(asked) > 400
    assert [name for name in asked if not hasattr(library, name)] == []


def test_gpustat(node: Node) -> None:
    """gpustat shows the four cards: busy, idle, in MIG mode, and without figures for memory."""
    node.write(*cards())
    told = json.loads(run(node, "gpustat", "--json"))["gpus"]
    assert [(gpu["uuid"], gpu["utilization.gpu"], gpu["memory.used"], gpu["memory.total"]) for gpu in told] == [
        (uuid(0), 63, 41500, 81559),
        (uuid(1), 0, 0, 81559),
        (uuid(2), None, 30400, 81559),
        (uuid(3), 0, None, None),
    ]
    assert [(each["pid"], each["gpu_memory_usage"]) for each in told[0]["processes"]] == [(os.getpid(), 30100)]


def test_nvitop(node: Node) -> None:
    """nvitop shows them too, with the MIG devices and the processes."""
    node.write(*cards())
    told = run(node, "nvitop", "--once", "--no-unicode")
    for shown in (
        "40.53GiB / 79.65GiB |     63%",
        "2:0      3g.40gb @ GI/CI: 1/0 |  29.30GiB / 39.50GiB",
        "2:1      1g.10gb @ GI/CI: 7/0 |",
        "|   3  GB10",
        f"{os.getpid()} C",
    ):
        assert shown in told


def test_an_old_driver_shows_in_gpustat(driver: Driver) -> None:
    """Without the newest functions gpustat falls back; the old memory call counts what is reserved as used."""
    node = driver(["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v3"])
    node.write(*cards())
    told = json.loads(run(node, "gpustat", "--json"))["gpus"]
    assert told[0]["memory.used"] == 41500 + 551
    assert [each["pid"] for each in told[0]["processes"]] == [os.getpid()]


def test_a_new_description_is_seen_at_the_next_call(node: Node) -> None:
    """Tests rewrite the node while a process looks at it; handles stay good."""
    node.write(card(0, util_gpu=63))
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu == 63
    node.write(card(0, util_gpu=7), card(1))
    assert (pynvml.nvmlDeviceGetUtilizationRates(handle).gpu, pynvml.nvmlDeviceGetCount()) == (7, 2)


def test_a_slow_call_holds_up_no_other(node: Node) -> None:
    """The library is not locked while a call is slow: a second card answers meanwhile."""
    node.write(card(0, delay_ms__nvmlDeviceGetName=60_000), card(1))
    pynvml.nvmlInit()
    slow, quick = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in (0, 1))
    thread = threading.Thread(target=pynvml.nvmlDeviceGetName, args=(slow,), daemon=True)
    thread.start()
    thread.join(0.1)
    assert pynvml.nvmlDeviceGetName(quick) == "NVIDIA H100 80GB HBM3"
    assert thread.is_alive()


def test_threads_and_new_descriptions(node: Node) -> None:
    """Eight threads ask while the description changes fifty times; nobody gets an error."""
    node.write(card(0), card(1))
    pynvml.nvmlInit()
    errors: list[Exception] = []

    def ask() -> None:
        try:
            for _ in range(100):
                handle = pynvml.nvmlDeviceGetHandleByIndex(1)
                assert pynvml.nvmlDeviceGetUUID(handle) == uuid(1)
                pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for busy in range(50):
        node.write(card(0, util_gpu=busy), card(1))
    for thread in threads:
        thread.join()
    assert errors == []


def test_wrong_versions_of_structs_are_refused(node: Node) -> None:
    """A client built for another layout is told so, and gets no garbage."""
    node.write(card(0))
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(pynvml.NVMLError) as refused:
        pynvml.nvmlDeviceGetMemoryInfo(handle, version=1)
    assert refused.value.value == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
