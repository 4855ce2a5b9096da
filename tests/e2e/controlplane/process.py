"""One running component: its command, its log and its life.

       start            pause
  none -----> running <-------> paused        start waits until it is ready
   ^            |       resume     |
   +------------+------------------+          stop (SIGTERM) or kill (SIGKILL)

Used as a context manager it is killed at the end of the block, else with the
control plane it belongs to. It may be started again after its end, with the same command and so on
the same port and data: that is what failure tests do. Only processes started
here are ever signalled, each by its own number.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tests.e2e.controlplane.guard import Guard
from tests.e2e.controlplane.waiting import wait_until

READY_SECONDS = 120.0  # a laptop that is busy with other things included
STOP_SECONDS = 30.0
TAIL_LINES = 40
TAIL_BYTES = 16_384


class ComponentError(RuntimeError):
    """A component died or did not become ready; the text ends with its log."""

    def __init__(self, process: Process, what: str) -> None:
        super().__init__(f"{process.name} {what}; the end of {process.log}:\n{process.tail()}")


@dataclass
class Process:
    """A component that can be started, ended, frozen and started again."""

    name: str
    command: Sequence[str]
    log: Path
    """Standard output and error of every life of this component."""
    url: str
    """Where its own HTTP endpoint listens."""
    ready: Callable[[], bool]
    """Whether it serves; asked repeatedly while it starts, must not raise."""
    guard: Guard
    _running: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def alive(self) -> bool:
        """Whether it runs (a paused one does)."""
        return self._running is not None and self._running.poll() is None

    @property
    def pid(self) -> int:
        """The number of the process that runs now."""
        return self._required().pid

    def start(self, seconds: float = READY_SECONDS) -> None:
        """Start it and wait until it is ready; ComponentError if it is not."""
        self.spawn()
        self.wait_ready(seconds)

    def spawn(self) -> None:
        """Start it without waiting."""
        if self.alive:
            raise RuntimeError(f"{self.name} runs already")
        with self.log.open("ab") as log:
            # Its own session, so that Ctrl-C reaches the tests alone and they
            # decide the order in which things end.
            self._running = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.log.parent,
                start_new_session=True,
            )
        self.guard.watch(self._running.pid)

    def wait_ready(self, seconds: float = READY_SECONDS) -> None:
        """Wait until it serves; ComponentError if it dies or takes too long."""

        def serves() -> bool:
            ready = self.ready()
            if not self.alive:
                raise ComponentError(self, f"ended ({self.exit_code})")
            return ready

        try:
            wait_until(serves, f"{self.name} is ready", seconds)
        except TimeoutError as error:
            raise ComponentError(self, f"was not ready after {seconds:g} s") from error

    @property
    def exit_code(self) -> int | None:
        """What the last life ended with; a negative number is a signal."""
        return self._running.poll() if self._running else None

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Ask it to end and wait; kill it if it has not ended in time."""
        if not self.alive:
            return
        self._signal(signal.SIGTERM)
        self.resume()  # a paused process sees no SIGTERM
        try:
            self._required().wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once, as a crash would; paused or not."""
        if self.alive:
            self._signal(signal.SIGKILL)
            self._required().wait()

    def pause(self) -> None:
        """Freeze it: its connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen one go on."""
        self._signal(signal.SIGCONT)

    def restart(self, seconds: float = READY_SECONDS) -> None:
        """Stop it, then start it on the same port with the same data."""
        self.stop()
        self.start(seconds)

    def tail(self, lines: int = TAIL_LINES) -> str:
        """The last lines of the log."""
        if not self.log.exists():
            return "(no log)"
        text = self.log.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:]) or "(empty)"

    def _signal(self, number: signal.Signals) -> None:
        self._required().send_signal(number)

    def _required(self) -> subprocess.Popen[bytes]:
        if self._running is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._running
