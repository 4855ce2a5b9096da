"""A node's driver that is not there: libnvidia-ml.so.1 in C, with a text file for the cards.

The real pynvml, gpustat, nvitop and the agent run on it. A node is a directory:

    libnvidia-ml.so.1   run a process with LD_LIBRARY_PATH=<directory>
    node.ini            [system], [defaults], [topology] "0-1 = 20", and one section a card, in the order of the
                        index; read again when it changes. A key that is absent is NOT_SUPPORTED;
                        error.<function> = NAME fails a call, error.* all calls on a card;
                        delay_ms.<function> = N makes a call slow
    events              each line that is added is an event: "gpu xid 79 [gi ci]", also dbe, unavailable, recovery;
                        "!UNKNOWN" makes the wait fail
    limits              the memory limits that were set: "gpu soft hard cgroup", the last line of a cgroup counts
    trace               if there is one when node.ini is read, it gets the name of every call

What a real driver does and this does not: memory limits are remembered and told, never enforced, and nothing here
takes the time that hardware takes.
"""

import atexit
import os
import re
import subprocess
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

Value = str | int | Sequence[str]
HERE = Path(__file__).parent

SYSTEM: Mapping[str, Value] = {
    "driver_version": "580.126.09",
    "nvml_version": "13.580.126.09",
    "cuda_version": 13000,
}
# number id name slices instances sm memory_mib ce dec jpg ofa starts size
H100_PROFILES = (
    "0 19 1g.10gb 1 7 16 9984 1 1 1 0 0,1,2,3,4,5,6 1",
    "7 20 1g.10gb+me 1 1 16 9984 1 1 1 1 0,1,2,3,4,5,6 1",
    "9 15 1g.20gb 1 4 26 20096 1 1 1 0 0,2,4,6 2",
    "1 14 2g.20gb 2 3 32 20096 2 2 2 0 0,2,4 2",
    "2 9 3g.40gb 3 2 60 40448 3 3 3 0 0,4 4",
    "3 5 4g.40gb 4 1 64 40448 4 4 4 0 0 4",
    "4 0 7g.80gb 7 1 132 80896 8 7 7 1 0 8",
)
H100: Mapping[str, Value] = {
    "name": "NVIDIA H100 80GB HBM3",
    "brand": 14,
    "architecture": 9,
    "compute_capability": "9.0",
    "mem_total": "81559Mi",
    "mem_reserved": "551Mi",
    "mem_used": 0,
    "bar1_total": "131072Mi",
    "persistence_mode": 1,
    "display_mode": 0,
    "display_active": 0,
    "compute_mode": 0,
    "virtualization_mode": 0,
    "util_gpu": 0,
    "util_mem": 0,
    "util_enc": 0,
    "util_dec": 0,
    "temperature": 31,
    "power_mw": 70250,
    "power_limit_mw": 700000,
    "pstate": 0,
    "clock0": 345,
    "clock1": 345,
    "clock2": 2619,
    "max_clock0": 1980,
    "max_clock1": 1980,
    "max_clock2": 2619,
    "ecc_mode": 1,
    "remapped_rows": "0 0 0 0",
    "retired_pages_pending": 0,
    "supported_events": 0xFFFF,
    "mig_mode": 0,
    "clocks_event_reasons": 1,
    "numa": 0,
    "field.230": 0,
    "gi_profile": H100_PROFILES,
}


def uuid(number: int) -> str:
    """Return the UUID that `Node` gives its cards when they bring none."""
    return f"GPU-{number:08x}-0000-4000-8000-000000000000"


def card(number: int = 0, **changes: Value | None) -> dict[str, Value]:
    """Return what a card tells beside the defaults; two underscores in a name stand for a dot, None leaves out."""
    values: dict[str, Value | None] = {"uuid": uuid(number), "pci": f"0000:{0x10 + number:02x}:00", "minor": number}
    values |= {name.replace("__", "."): value for name, value in changes.items()}
    return {name: value for name, value in values.items() if value is not None}


class Node:
    """A node's directory. `write` describes it anew; the library sees that at its next call."""

    def __init__(self, directory: Path, hide: Iterable[str] = ()) -> None:
        """Make a node without cards; `hide` names functions that the driver is too old for."""
        self.directory = directory
        library = directory / "libnvidia-ml.so.1"
        library.write_bytes(build(frozenset(hide)))  # a copy of its own has a state of its own
        self.library = library
        (directory / "events").touch()
        self.write()

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a process finds this driver."""
        return {**os.environ, "LD_LIBRARY_PATH": str(self.directory)}

    def write(
        self,
        *cards: Mapping[str, Value],
        defaults: Mapping[str, Value] = H100,
        system: Mapping[str, Value] = SYSTEM,
        topology: Mapping[str, Value] = {},
    ) -> None:
        """Describe the node; the cards stand in the order of their index."""
        sections = [("system", system), ("defaults", defaults), ("topology", topology)]
        sections += [(f"gpu {index}", values) for index, values in enumerate(cards)]
        new = self.directory / "node.ini.new"
        new.write_text("\n".join(f"[{name}]\n{_lines(values)}" for name, values in sections))
        new.replace(self.directory / "node.ini")

    def event(self, index: int, kind: str, code: int = 0, instance: tuple[int, int] | None = None) -> None:
        """Let the driver tell of something that happened to a card."""
        self.happens(" ".join(map(str, (index, kind, code, *(instance or ())))))

    def happens(self, line: str) -> None:
        """Add a line to the events."""
        with (self.directory / "events").open("a") as events:
            events.write(f"{line}\n")


def _lines(values: Mapping[str, Value]) -> str:
    out = []
    for name, value in values.items():
        for one in [value] if isinstance(value, str | int) else value:
            out.append(f"{name} = {one}\n")  # noqa: PERF401
    return "".join(out)


@cache
def build(hide: frozenset[str] = frozenset()) -> bytes:
    """Link the library; `hide` are functions that it does not have.

    Raises
    ------
    RuntimeError
        There is no C compiler, or it refused.
    """
    out = _objects()
    script = out / "hidden.map"
    script.write_text(f"{{ local: {' '.join(f'{function};' for function in sorted(hide))} }};")
    only = [f"-Wl,--version-script={script}"] if hide else []
    objects = map(str, sorted(out.glob("*.o")))
    _cc("-shared", "-pthread", "-Wl,-soname,libnvidia-ml.so.1", *only, "-o", f"{out}/library", *objects, "-ldl")
    return (out / "library").read_bytes()


@cache
def _objects() -> Path:
    """Compile the C files and return where they are, until this process ends.

    A driver has every function, and answers NOT_SUPPORTED for what a board lacks. So each name that pynvml can ask
    for is there, weakly: what the C files define takes its place.
    """
    out = Path(mkdtemp(prefix="fakenvml-"))
    atexit.register(rmtree, out)
    bindings = Path(sysconfig.get_path("purelib"), "pynvml.py").read_text()
    names = sorted(set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', bindings)))
    stub = '__attribute__((weak)) API ret_t {0}(void) {{ SYSTEM("{0}"); LEAVE(NOT_SUPPORTED); }}\n'
    rest = out / "rest.c"
    rest.write_text('#include "fake.h"\n' + "".join(map(stub.format, names)))
    flags = ("-c", "-fPIC", "-O1", "-Wall", "-Wextra", "-fvisibility=hidden", f"-I{HERE}")
    for source in (*HERE.glob("*.c"), rest):
        _cc(*flags, "-o", f"{out}/{source.stem}.o", str(source))
    return out


def _cc(*arguments: str) -> None:
    try:
        ran = subprocess.run(["cc", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RuntimeError("These tests need a C compiler; on Debian install gcc.") from None
    if ran.returncode:
        raise RuntimeError(f"The fake driver does not compile:\n{ran.stderr}")
