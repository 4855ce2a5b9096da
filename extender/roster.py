"""Which row is behind each name of a JSON list? Told for thousands of names at once, without a Python object for any.

A dictionary would do, but to look five thousand names up in it costs more than all the rest of an answer. Here names
are cells of equal length, filled up with zeros, in a hash table made of arrays: the bytes decide, the hash only says
where to look first.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scoring.model import Ints

UNKNOWN: Final = -1  # the row of a name that is not there
_QUOTE: Final = ord('"')
_WORD: Final = 8  # bytes; a cell is so many of these
_WORDS: Final = 32  # of the longest name that Kubernetes allows
_SPARSE: Final = 8  # places of the table for each name
_MASKS: Final = np.array([(1 << (8 * n)) - 1 for n in range(_WORD + 1)], np.uint64)
_ODD: Final = np.random.default_rng(0).integers(1 << 62, 1 << 63, _WORDS, np.uint64) * np.uint64(2) + np.uint64(1)

Cells = NDArray[Any]  # [names], void


class Roster:
    """Names by row, in the order in which they were added."""

    def __init__(self) -> None:
        self._cells = _cut(b"", np.empty(0, np.int64), np.empty(0, np.int64), 1)
        self._table = np.full(_SPARSE, UNKNOWN, np.int32)

    def __len__(self) -> int:
        return len(self._cells)

    @property
    def _width(self) -> int:
        """The words of a cell."""
        return int(self._cells.dtype.itemsize) // _WORD

    def add(self, names: Sequence[str]) -> None:
        """Add names, none of which is there yet. Those that Kubernetes does not allow, too long, are never found."""
        encoded = [name if len(name) <= _WORD * _WORDS else b'"' for name in map(str.encode, names)]
        lengths = np.array([len(name) for name in encoded], np.int64)
        was, width = self._cells, max(self._width, -(-int(lengths.max(initial=1)) // _WORD))
        self._cells = np.zeros(len(was) + len(names), f"V{_WORD * width}")
        self._cells[: len(was)] = was
        self._cells[len(was) :] = _cut(b"".join(encoded), lengths.cumsum() - lengths, lengths, width)
        first = len(was)
        if was.dtype != self._cells.dtype or _SPARSE * len(self) > len(self._table):
            self._table, first = np.full(1 << (_SPARSE * len(self)).bit_length(), UNKNOWN, np.int32), 0
        for row, slot in enumerate(self._slots(self._cells[first:]).tolist(), first):
            while self._table[slot] != UNKNOWN:
                slot = (slot + 1) % len(self._table)
            self._table[slot] = row

    def rows(self, raw: bytes) -> Ints | None:
        """Return the row of each name of a list in JSON, UNKNOWN where there is none.

        `raw` must be JSON. None: it has to be decoded, for it has escapes or spaces, or is no list of names.
        """
        at = np.flatnonzero(np.frombuffer(raw, np.uint8) == _QUOTE)
        starts, ends = at[0::2] + 1, at[1::2]
        plain = raw.startswith(b'["') and raw.endswith(b'"]') and b"\\" not in raw
        if not plain or len(at) % 2 or not len(at):
            return None
        if not (starts[1:] - ends[:-1] == len('","')).all():
            return None
        return self._found(raw, starts, ends - starts)

    def _found(self, raw: bytes, starts: Ints, lengths: Ints) -> Ints:
        most = self._cells.dtype.itemsize
        cells = _cut(raw, starts, np.minimum(lengths, most), self._width)
        slots = self._slots(cells)
        rows = self._table[slots].astype(np.int64)
        if not len(self):
            return rows
        known, words = _as_words(self._cells), _as_words(cells)
        wrong = np.unique(np.flatnonzero(known[rows] != words) // self._width)
        while len(wrong := wrong[rows[wrong] != UNKNOWN]):
            slots[wrong] = (slots[wrong] + 1) % len(self._table)
            rows[wrong] = self._table[slots[wrong]]
            wrong = wrong[(known[rows[wrong]] != words[wrong]).any(axis=1)]
        rows[lengths > most] = UNKNOWN
        return rows

    def _slots(self, cells: Cells) -> Ints:
        words = _as_words(cells)
        # The upper bits of sums of products are the mixed ones.
        return (words @ _ODD[: words.shape[1]] >> np.uint64(65 - len(self._table).bit_length())).astype(np.int64)


def _cut(text: bytes, starts: Ints, lengths: Ints, width: int) -> Cells:
    """Return parts of a text as cells of so many words."""
    size = _WORD * width
    anywhere = np.ndarray((len(text) + 1,), f"V{size}", text + bytes(size), strides=(1,))
    cells: Cells = anywhere[starts]
    words = _as_words(cells)
    for at in range(int(lengths.min(initial=size)) // _WORD, width):  # what stands behind a part is not of it
        words[:, at] &= _MASKS[np.clip(lengths - _WORD * at, 0, _WORD)]
    return cells


def _as_words(cells: Cells) -> NDArray[np.uint64]:
    return cells.view(np.uint64).reshape(len(cells), cells.dtype.itemsize // _WORD)
