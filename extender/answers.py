"""Replies to filter and prioritize about node names, joined from prepared pieces.

kube-scheduler asks twice for every pod, about every node. What is the same from question to question is kept: each
node's name as JSON, the node behind each name of the last few lists, and why a demand does not fit a node, which is
looked at again only where something changed. `extender/verbs.py` says the same in plain words, and a property test
holds the two together.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from extender import wire
from extender.pod import Request
from extender.request import BadDemand
from extender.roster import UNKNOWN, Roster
from extender.state import NO_INVENTORY, ClusterState
from extender.verbs import BEST, DECISIVE, filter_nodes, levels, prioritize, why_not
from extender.wire import Pod
from scoring.model import Demand, Ints
from scoring.place import UNFIT

LISTS: Final = 8  # of names that are remembered: full ones, and those that filter has just let pass
DEMANDS: Final = 512
REJECTED: Final = 16  # replies about pods that fit nowhere
FITS: Final = ""

Pieces = NDArray[np.object_]  # names as JSON
Key = tuple[Demand, str | None]  # and the policy that the pod names


@dataclass(slots=True)
class Names:
    """One list of node names: as it came, the row of each, and each as JSON."""

    raw: bytes
    rows: Ints
    pieces: Pieces
    size: int  # of the fleet in which the rows were looked up; -1: all were found
    rejected: dict[Key, tuple[int, bytes]] = field(default_factory=dict)

    def plain(self) -> list[str]:
        """Return the names as text."""
        return wire.names_decoder.decode(self.raw)


@dataclass(slots=True)
class _Why:
    """Why one demand does not fit each node, as of a count of the fleet's changes; the last is for unknown ones."""

    codes: Ints  # [N + 1]
    changes: int
    epoch: int  # of the policy


class Answers:
    """Answers one state's questions; `rest` is the most that any but the best node scores."""

    def __init__(self, state: ClusterState, rest: int = DECISIVE) -> None:
        self._state, self._rest = state, rest
        self._lists: deque[Names] = deque(maxlen=LISTS)
        self._roster = Roster()
        self._pieces: list[bytes] = []  # by row
        self._by_row: Pieces = np.empty(0, np.object_)
        self._why: dict[Key, _Why] = {}
        self._texts = [FITS]
        self._codes = {FITS: 0}
        self._code(NO_INVENTORY)
        self._scored: Pieces = np.array([b',"Score":%d},{"Host":' % level for level in range(BEST + 1)], np.object_)

    def names(self, raw: bytes) -> Names:
        """Return a list of names, in JSON, with what is known of them.

        Raises
        ------
        msgspec.DecodeError
        """
        for known in self._lists:
            if known.raw == raw and known.size in (len(self._state.fleet), UNKNOWN):
                return known
        pieces = self._named()
        rows = self._roster.rows(raw)
        if rows is None:
            return self.of(wire.names_decoder.decode(raw), raw)
        pieces, strangers = pieces[rows], np.flatnonzero(rows == UNKNOWN)
        if len(strangers):
            wire.names_decoder.decode(raw)  # what nobody knows is still to be JSON
            parts = raw.removeprefix(b'["').removesuffix(b'"]').split(b'","')
            pieces[strangers] = [b'"%b"' % parts[at] for at in strangers.tolist()]
        return self._keep(Names(raw, rows, pieces, len(self._state.fleet) if len(strangers) else UNKNOWN))

    def of(self, listed: list[str], raw: bytes = b"") -> Names:
        """Return some names with what is known of them; `raw`: as they came."""
        index = self._state.fleet.index
        rows = np.array([index.get(name, UNKNOWN) for name in listed], np.int64)
        pieces = self._named()[rows]
        strangers = np.flatnonzero(rows == UNKNOWN)
        for at in strangers.tolist():
            pieces[at] = wire.encode(listed[at])
        size = len(self._state.fleet) if len(strangers) else UNKNOWN
        return self._keep(Names(raw or wire.encode(listed), rows, pieces, size))

    def filter(self, pod: Pod, names: Names) -> tuple[bytes, str]:
        """Return the reply, and the name of the one node that is left if it is just one."""
        state = self._state
        request = self._request(pod)
        if request is None or pod.metadata.uid in state.assumed:
            result = filter_nodes(state, pod, names.plain())
            left = result.node_names or []
            return wire.encode(result), left[0] if len(left) == 1 else ""
        key = (request.demand, request.policy)
        changes, reply = names.rejected.get(key, (-1, b""))
        if changes == state.fleet.changes:
            return reply, ""
        codes = self._why_not(request)[names.rows]
        fit = codes == self._codes[FITS]
        passed = self._passed(names, fit)
        reply = b'{"NodeNames":%b,"Nodes":null,"FailedNodes":{},"FailedAndUnresolvableNodes":{%b},"Error":""}' % (
            passed.raw,
            self._reasons(names.pieces, codes),
        )
        if not len(passed.rows) and state.board(request.policy).looked_at_all(request.demand):
            if len(names.rejected) >= REJECTED:
                names.rejected.clear()
            names.rejected[key] = (state.fleet.changes, reply)
        return reply, state.fleet.names[passed.rows[0]] if len(passed.rows) == 1 else ""

    def prioritize(self, pod: Pod, names: Names) -> tuple[bytes, str]:
        """Return the reply, and the name of the best node."""
        state = self._state
        request = self._request(pod)
        if request is None or not len(names.rows) or not len(state.fleet):
            return wire.encode(prioritize(state, pod, names.plain())), ""
        scores = state.board(request.policy).node_scores(request.demand)
        of_each = levels(np.where(names.rows >= 0, scores[names.rows], UNFIT), self._rest)
        parts = [b""] * (2 * len(of_each))
        parts[0::2] = names.pieces.tolist()
        parts[1::2] = self._scored[of_each].tolist()
        best = int(of_each.argmax())
        parts[-1] = b',"Score":%d}]' % of_each[-1]
        name = state.fleet.names[names.rows[best]] if of_each[best] == BEST else ""
        return b'[{"Host":' + b"".join(parts), name

    # --- inside -----------------------------------------------------------------------------------------------

    def _request(self, pod: Pod) -> Request | None:
        """Return what a pod asks; None if it asks nothing, or nothing that can be read."""
        try:
            return self._state.request_of(pod)
        except BadDemand:
            return None

    def _keep(self, names: Names) -> Names:
        self._lists.appendleft(names)
        return names

    def _named(self) -> Pieces:
        """Return each row's name as JSON [N], and one more for the unknown."""
        fleet = self._state.fleet
        if len(self._by_row) != len(fleet) + 1:
            self._pieces += map(wire.encode, fleet.names[len(self._pieces) :])
            self._by_row = np.array([*self._pieces, None], np.object_)
            self._roster.add(fleet.names[len(self._roster) :])
        return self._by_row

    def _passed(self, names: Names, fit: NDArray[np.bool_]) -> Names:
        """Return the names that fit. kube-scheduler asks prioritize about just these, so they are remembered."""
        if fit.all():
            return names
        pieces = names.pieces[fit]
        return self._keep(Names(b"[%b]" % b",".join(pieces.tolist()), names.rows[fit], pieces, UNKNOWN))

    def _reasons(self, pieces: Pieces, codes: Ints) -> bytes:
        """Return the members of a JSON object: each name that does not fit, with its reason."""
        groups = []
        for code in np.flatnonzero(np.bincount(codes)).tolist():
            if self._texts[code] != FITS:
                why = b":" + wire.encode(self._texts[code])
                groups.append((why + b",").join(pieces[codes == code].tolist()) + why)
        return b",".join(groups)

    def _why_not(self, request: Request) -> Ints:
        """Return the code of the reason by row [N + 1], the last for unknown nodes."""
        fleet, board, key = self._state.fleet, self._state.board(request.policy), (request.demand, request.policy)
        scores = board.node_scores(request.demand)  # the answer that bind will get
        known, rows = self._why.get(key), None
        if known is not None and known.epoch == board.policy.epoch and len(known.codes) == len(scores) + 1:
            rows = fleet.changed_since(known.changes)
            if rows is not None and len(request.demand.asks) > 1:  # of which some nodes were looked at only now
                said_fit = known.codes[:-1] == self._code(FITS)
                rows = np.union1d(rows, np.flatnonzero(said_fit != (scores > UNFIT)))
        if known is None or rows is None:
            if len(self._why) >= DEMANDS:
                self._why.clear()
            none = np.full(len(scores) + 1, self._code(NO_INVENTORY))
            known, rows = _Why(none, 0, board.policy.epoch), np.arange(len(scores))
            self._why[key] = known
        known.codes[rows] = self._code(FITS)
        unfit = rows[scores[rows] == UNFIT]
        if len(unfit):
            known.codes[unfit] = [self._code(text) for text in why_not(self._state, request.demand, unfit)]
        known.changes = fleet.changes
        return known.codes

    def _code(self, text: str) -> int:
        if text not in self._codes:
            self._codes[text] = len(self._texts)
            self._texts.append(text)
        return self._codes[text]
