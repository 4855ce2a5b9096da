"""The latency benchmark: its made cluster is half full, and every figure it shows was measured."""

import os
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from benchmarks import latency, synthetic
from extender.cluster.embedded import EmbeddedCluster
from extender.node import Rules
from extender.state import ClusterState


def test_the_made_cluster_is_half_full(tmp_path: Path) -> None:
    """The extender reads it, no card is over-promised, and half of all cards is taken."""
    synthetic.write(tmp_path / "cluster.yaml", 300, seed=3)
    state = ClusterState(Rules())
    for source in EmbeddedCluster.load(tmp_path / "cluster.yaml").sources():
        tell = {"nodes": state.saw_node, "gpunodes": state.saw_inventory, "pods": state.saw_pod}.get(source.kind)
        for found in source.list()[0] if tell else ():
            tell(found)  # type: ignore[operator, misc]
    free = state.fleet.free.milli[: len(state.fleet)]
    assert (len(state.fleet), free.min() >= 0, state.closed) == (300, True, {})
    assert 0.4 < free.sum() / (300 * synthetic.CARDS * 1000) < 0.6


def test_the_order_of_names() -> None:
    """Parallel filters lose no name and name none twice, and the order is another one each time."""
    rng, names = Random(1), [f"n{i}" for i in range(500)]
    first, second = latency.in_parallel(names, rng), latency.in_parallel(names, rng)
    assert Counter(first) == Counter(second) == Counter(names)
    assert first != second
    assert latency.in_parallel([], rng) == []


def test_a_small_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every verb has figures of the extender and of the floor; binds only of the extender."""
    monkeypatch.setattr(latency, "_go", lambda _: [])
    core = max(os.sched_getaffinity(0))
    figures, alone = latency._measured(20, 1, 3, 0, core)
    assert alone > 0
    assert [*figures] == [*latency.VERBS]
    for verb, servers in figures.items():
        assert [*servers] == (["Tessera"] if verb == "bind" else ["Tessera", "floor"])
        assert all(value > 0 for of in servers.values() for value in of.values())
