"""Ends what the tests started when the tests die without a word.

A killed test run cannot tear anything down, and an orphaned control plane eats
half a gigabyte for ever. So a second, tiny process reads process numbers from
its standard input. The end of that input means that the test run is gone; then
it kills whatever of them still runs and removes the folders it was given.

Numbers become handles (pidfd) at once, so that a number which the kernel gave
to a stranger in the meantime can never be hit. Where the system has no such
handles, there is no guard. Runs as a script; imports the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

GRACE_SECONDS = 5.0


class Guard:
    """The test run's side: a pipe whose end tells the guard that we are gone."""

    def __init__(self, folder: Path | None) -> None:
        """`folder` is removed with the processes; None removes nothing."""
        command = [sys.executable, "-I", __file__, *([str(folder)] if folder else [])]
        self._process: subprocess.Popen[str] | None = None
        if hasattr(os, "pidfd_open"):
            # Its own session: Ctrl-C at the terminal must not end the guard first.
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)

    def watch(self, pid: int) -> None:
        """Put one more process under guard."""
        if self._process and self._process.stdin:
            self._process.stdin.write(f"{pid}\n")
            self._process.stdin.flush()

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process and self._process.stdin:
            self._process.stdin.close()
            self._process.wait()


def handles(numbers: Iterable[str]) -> list[int]:
    """Read process numbers until the input ends; return the handles."""
    found = []
    for number in numbers:
        with contextlib.suppress(ProcessLookupError):
            found.append(os.pidfd_open(int(number)))
    return found


def end(handle: int) -> None:
    """Kill the process behind the handle and wait until it is gone."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        select.select([handle], [], [], GRACE_SECONDS)


if __name__ == "__main__":
    for survivor in handles(sys.stdin):
        end(survivor)
    for folder in sys.argv[1:]:
        shutil.rmtree(folder, ignore_errors=True)
