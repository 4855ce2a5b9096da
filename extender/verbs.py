"""filter and prioritize: questions about a snapshot, which write nothing and remember nothing.

The texts are few, short and fixed: kube-scheduler aggregates them, and a text that changes from call to call
makes it retry the pod without end. Every rejected node goes into FailedAndUnresolvableNodes: a node that an
extender rejects has passed all other filters, so kube-scheduler's preemption dry run could find no victim there
and would try again for ever.
"""

from typing import Final

import numpy as np

from extender.request import BadDemand
from extender.state import NO_INVENTORY, ClusterState
from extender.wire import FilterResult, HostPriority, Pod
from scoring.fit import ever_fits, needs
from scoring.model import Demand, Floats, Ints

WRONG_MODEL: Final = "no card of the requested model or uuid"
TOO_SMALL: Final = "the node's cards cannot hold the request even when empty"
NO_MEMORY: Final = "no card with enough free GPU memory"
NO_COMPUTE: Final = "no card with enough free GPU utilization"
NO_SLOT: Final = "no card that may take another pod"
UNDECIDED: Final = "an earlier bind of the pod to another node is not decided yet"
OTHERS: Final = "no card with enough room whose pods the pod may share it with"
NO_ROOM: Final = "no cards with enough free GPU memory and utilization together"

BEST: Final = 10  # kube-scheduler's MaxExtenderPriority
# What any but the best node scores at most: so little that the best one wins against any plugin, or all there is.
DECISIVE: Final = 3
COOPERATIVE: Final = 9


def filter_nodes(state: ClusterState, pod: Pod, names: list[str]) -> FilterResult:
    """Return which of the nodes can take a pod now, and why the others cannot."""
    try:
        request = state.request_of(pod)
    except BadDemand as error:
        return FilterResult(node_names=[], failed_and_unresolvable_nodes=dict.fromkeys(names, str(error)))
    if request is None:
        return FilterResult(node_names=names)
    index = state.fleet.index
    undecided = state.assumed.get(pod.metadata.uid)
    if undecided is not None:
        failed = {name: UNDECIDED for name in names if name != undecided.node}
        return FilterResult(node_names=[n for n in names if n not in failed], failed_and_unresolvable_nodes=failed)
    failed = {name: NO_INVENTORY for name in names if name not in index}
    known = [name for name in names if name in index]
    rows = np.array([index[name] for name in known], np.int64)
    ok = np.isfinite(state.board(request.policy).node_scores(request.demand)[rows])  # the answer that bind will get
    reasons = why_not(state, request.demand, rows[~ok])
    failed |= dict(zip([n for n, fit in zip(known, ok, strict=True) if not fit], reasons, strict=True))
    return FilterResult(node_names=[n for n in names if n not in failed], failed_and_unresolvable_nodes=failed)


def prioritize(state: ClusterState, pod: Pod, names: list[str], rest: int = DECISIVE) -> list[HostPriority]:
    """Return a whole number from 0 to 10 for each node: 10 for the best, 0 where the pod does not fit.

    The first of equally good nodes is the best one; the others are spread over 0 to `rest` by their score.
    """
    try:
        request = state.request_of(pod)
    except BadDemand:
        request = None
    if request is None:
        return [HostPriority(name, 0) for name in names]
    of_all = state.board(request.policy).node_scores(request.demand)
    scores = np.array([of_all[state.fleet.index[n]] if n in state.fleet.index else -np.inf for n in names])
    return [HostPriority(name, score) for name, score in zip(names, levels(scores, rest).tolist(), strict=True)]


def levels(scores: Floats, rest: int) -> Ints:
    """Return each node's level: 10 for the first of the best, 0 to `rest` for the others, 0 where nothing fits."""
    fit = np.isfinite(scores)
    if not fit.any():
        return np.zeros(len(scores), np.int64)
    low, high = scores.min(where=fit, initial=np.inf), scores.max()
    spread = (scores - low) / (high - low) if high > low else np.ones(len(scores))
    found = np.where(fit, rest * spread, 0).astype(np.int64)
    found[scores.argmax()] = BEST
    return found


def why_not(state: ClusterState, demand: Demand, rows: Ints) -> list[str]:
    """Return why a demand does not fit each of some nodes: the first of the causes that holds."""
    fleet = state.fleet
    right = np.ones(len(rows), np.bool_)
    if (allowed := fleet.eligible(demand, rows)) is not None:
        right = np.asarray(allowed.any(axis=1, where=fleet.capacity.slots[rows] >= 0), np.bool_)
    enough = [np.ones(len(rows), np.bool_) for _ in range(4)]
    for ask in demand.asks:
        all_three = np.ones((len(rows), fleet.width), np.bool_) if allowed is None else allowed
        for ok, want, free in zip(enough, map(np.asarray, needs(fleet, ask, rows)), fleet.free[:3], strict=False):
            have = free[rows]
            one = (have >= want) & (have >= 0)
            ok &= one.sum(axis=1) >= ask.count
            all_three = all_three & one
        enough[3] &= all_three.sum(axis=1) >= ask.count
    mib, milli, slots, together = enough
    joinable = fleet.joinable(demand, rows)
    barred = together & (False if joinable is None else ~joinable.all(axis=1))
    rest = np.ones(len(rows), np.bool_)
    holds = [~right, ~ever_fits(fleet, demand, rows), ~slots, ~mib, ~milli, barred, rest]
    causes = (WRONG_MODEL, TOO_SMALL, NO_SLOT, NO_MEMORY, NO_COMPUTE, OTHERS, NO_ROOM)
    first = np.argmax(holds, axis=0).tolist()
    names = [fleet.names[row] for row in rows.tolist()]
    closed = [state.closed.get(name) or ("" if name in state.inventories else NO_INVENTORY) for name in names]
    return [why or causes[i] for why, i in zip(closed, first, strict=True)]
