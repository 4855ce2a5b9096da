"""Traces: read from files in openb's layout, or made up; what cannot be read is one sentence with the file in it."""

import gzip
import hashlib
from pathlib import Path

import pytest

from benchmarks.traces import MOST, BadTrace, load, synthetic
from scoring.model import CARD, Ask, Demand

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,8000,1024,2,A10\nn2,4000,512,1,T4\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\na,1000,10,1,300,\nb,2000,20,2,1000,A10|T4\nc,500,5,0,0,\n"
)


def folder(root: Path, *, nodes: str = NODES, pods: str = PODS, order: str | None = "P a b\nP c\nN n2 n1\n") -> Path:
    """Write a trace of two nodes and three pods, with the order of seed 1."""
    for name in ("nodes", "pods", "orders"):
        (root / name).mkdir()
    (root / "nodes/openb_node_list_gpu_node.csv").write_text(nodes)
    (root / "pods/openb_pod_list_tiny.csv").write_text(pods)
    if order is not None:
        with gzip.open(root / "orders/tiny_1.ord.gz", "wt") as file:
            file.write(order)
    return root


def test_a_trace_with_its_order_file(tmp_path: Path) -> None:
    """Pods arrive in the order of the file of the seed, and its order of nodes breaks ties."""
    trace = load(folder(tmp_path), "tiny", seed=1)
    a, b, c = trace.history
    assert trace.arrivals == (a, b, c)
    assert [node.name for node in trace.nodes] == ["n2", "n1"]
    assert (trace.name, trace.milli) == ("tiny", 3 * CARD)
    assert a == Demand((Ask(milli=300),), ((0,),), 1000, 10)
    assert b.models == ("a10", "t4")
    assert b.asks == (Ask(2, 0, 100, CARD, exclusive=True, whole=True),)
    assert c == Demand(cpu_milli=500, ram_mib=5)


def test_copies_of_pods_keep_their_demand(tmp_path: Path) -> None:
    """An order names copies `<pod>-tuned-<n>`; without nodes the file's order stays."""
    trace = load(folder(tmp_path, order="P b a-tuned-1 a\nX ignored\n\n"), "tiny", seed=1)
    a, b, _ = trace.history
    assert trace.arrivals == (b, a, a)
    assert [node.name for node in trace.nodes] == ["n1", "n2"]


def test_a_seed_without_an_order_file_shuffles(tmp_path: Path) -> None:
    """Another seed is a shuffle of ours, the same each time, up to 130 % of the cards."""
    root = folder(tmp_path)
    one, again, other = (load(root, "tiny", seed=s) for s in (7, 7, 8))
    assert one == again
    assert one != other
    assert sum(d.milli for d in one.arrivals) <= 1.3 * one.milli


def test_the_fleet_is_empty_and_tells_no_memory(tmp_path: Path) -> None:
    """A trace's cards have compute alone."""
    fleet = load(folder(tmp_path), "tiny", seed=1).fleet()
    assert fleet.names == ["n2", "n1"]
    assert fleet.free.milli.tolist() == [[1000, -1], [1000, 1000]]
    assert fleet.capacity.mib.tolist() == [[0, -1], [0, 0]]
    assert fleet.free.cpu.tolist() == [4000, 8000]


def test_a_synthetic_trace() -> None:
    """A made-up trace is the same each time, and offers 130 % of its cards."""
    trace = synthetic(3, nodes=20)
    assert trace == synthetic(3, nodes=20)
    assert trace != synthetic(4, nodes=20)
    assert len(trace.nodes) == 20
    assert 1.2 * trace.milli < sum(d.milli for d in trace.arrivals) <= 1.3 * trace.milli


@pytest.mark.parametrize(
    ("seed", "nodes", "digest"),
    [(42, 200, "c2c5690ed15a1643"), (43, 40, "b9ab0e55f9d006ef"), (1, 1, "6d1832c5e7c58466")],
)
def test_a_synthetic_trace_stays_what_it_is(seed: int, nodes: int, digest: str) -> None:
    """Results of a seed can be compared over releases."""
    assert hashlib.sha256(repr(synthetic(seed, nodes)).encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize(
    ("nodes", "pods", "order", "says"),
    [
        pytest.param("sn,gpu\nn1,2\n", PODS, None, "has a row that is no node: 'cpu_milli'.", id="a column missing"),
        pytest.param(
            NODES.replace("8000", "x"),
            PODS,
            None,
            "has a row that is no node: invalid literal for int() with base 10: 'x'.",
            id="no number in a node",
        ),
        pytest.param(
            NODES,
            PODS.replace("300", ""),
            None,
            "has a row that is no pod: invalid literal for int() with base 10: ''.",
            id="no number in a pod",
        ),
        pytest.param(
            NODES, PODS, "P z\n", "names z, which is in neither tiny nor the nodes.", id="an order of unknown pods"
        ),
        pytest.param(
            NODES,
            PODS,
            "P a\nN z\n",
            "names z, which is in neither tiny nor the nodes.",
            id="an order of unknown nodes",
        ),
        pytest.param(NODES.splitlines()[0], PODS, None, "has no node with a card.", id="no nodes"),
        pytest.param(NODES, PODS.splitlines()[0], None, "has no pod that asks for a card.", id="no pods"),
        pytest.param(NODES, PODS + "c\n", None, "not 'NoneType'.", id="a short row"),
        pytest.param(NODES, PODS.replace("300", "-300"), None, "gpu_milli is -300, not from 0 to 1000.", id="a gift"),
        pytest.param(
            NODES, PODS.replace("300", "1001"), None, "gpu_milli is 1001, not from 0 to 1000.", id="a card+"
        ),
        pytest.param(
            NODES, PODS.replace("1,300", "-1,300"), None, "num_gpu is -1, not from 0 to 1000.", id="-1 card"
        ),
        pytest.param(
            NODES,
            PODS.replace("1000,10", "-1000,10"),
            None,
            f"cpu_milli is -1000, not from 0 to {MOST}.",
            id="-1 core",
        ),
        pytest.param(
            NODES,
            PODS.replace("1000,10", "1000,-10"),
            None,
            f"memory_mib is -10, not from 0 to {MOST}.",
            id="-10 MiB",
        ),
        pytest.param(NODES.replace(",2,A", ",-2,A"), PODS, None, "gpu is -2, not from 0 to 1000.", id="-2 cards"),
        pytest.param(
            NODES.replace("8000", "9" * 23), PODS, None, f"{'9' * 23}, not from 0 to {MOST}.", id="too many cores"
        ),
        pytest.param(NODES, PODS, "N n1\n", "has no line of pods (P name name ...).", id="an order of no pods"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, nodes: str, pods: str, order: str | None, says: str) -> None:
    """The sentence names the file and what is wrong in it."""
    with pytest.raises(BadTrace) as refused:
        load(folder(tmp_path, nodes=nodes, pods=pods, order=order), "tiny", seed=1)
    assert str(refused.value).startswith(str(tmp_path))
    assert str(refused.value).endswith(says)


def test_an_order_of_other_pods_is_refused(tmp_path: Path) -> None:
    """Lists of a folder share names of pods, so the order of another one would run under a wrong name."""
    root = folder(tmp_path)
    order = (root / "orders/tiny_1.ord.gz").rename(root / "orders/big_1.ord.gz")
    load(root, "tiny", order=order)
    (root / "pods/openb_pod_list_big.csv").write_text(PODS)
    with pytest.raises(BadTrace, match=r"big_1\.ord\.gz is an order of the pods big, not of tiny\."):
        load(root, "tiny", order=order)
    assert load(root, "big", order=order).name == "big"


def test_files_that_are_not_there(tmp_path: Path) -> None:
    """A folder that is none, and a list of pods that is not in it, are named."""
    with pytest.raises(BadTrace, match=r"openb_node_list_gpu_node.csv cannot be read: No such file or directory\."):
        load(tmp_path / "gone", "tiny")
    with pytest.raises(BadTrace, match=r"openb_pod_list_other.csv cannot be read: No such file or directory\."):
        load(folder(tmp_path), "other")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    """What is not UTF-8 is named."""
    made = folder(tmp_path)
    (made / "pods" / "openb_pod_list_tiny.csv").write_bytes(b"name,\xff\n\xff,1\n")
    with pytest.raises(BadTrace, match="is no CSV: 'utf-8' codec can't decode"):
        load(made, "tiny")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"P a b\n", id="not compressed"),
        pytest.param(gzip.compress(b"P a b\n")[:-9], id="cut"),
        pytest.param(gzip.compress(b"P a b\n")[:10] + b"\xff" * 20, id="damaged"),
        pytest.param(gzip.compress(b"P \xff\n"), id="no text"),
        pytest.param(b"", id="empty"),
    ],
)
def test_an_order_that_is_no_gzip(tmp_path: Path, content: bytes) -> None:
    """A file that is not compressed, cut or empty is named."""
    order = tmp_path / "x.ord.gz"
    order.write_bytes(content)
    with pytest.raises(BadTrace) as refused:
        load(folder(tmp_path), "tiny", order=order)
    assert str(order) in str(refused.value)
