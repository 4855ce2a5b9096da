"""A node's cards: what the agent writes the extender reads, in the words of the custom resource."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.inventory import (
    API_VERSION,
    GPU_PROPERTIES,
    BadInventory,
    Gpu,
    Inventory,
    MigInstance,
    MigProfile,
    decode,
    encode,
)
from nodeagent.conditions import as_status
from nodeagent.limits import CONDITION

GOLDEN = Path(__file__).parents[1] / "golden/inventory.json"
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
AMOUNT = st.integers(0, 2**27 - 1)
MAYBE = st.none() | AMOUNT
INSTANCES = st.builds(
    MigInstance,
    TEXT,
    profile=TEXT,
    gpu_instance=MAYBE,
    compute_instance=MAYBE,
    start=MAYBE,
    memory_mib=MAYBE,
    used_mib=MAYBE,
    healthy=st.booleans(),
    reason=TEXT,
)
PROFILES = st.builds(
    MigProfile, TEXT, AMOUNT, TEXT, AMOUNT, AMOUNT, AMOUNT, st.lists(AMOUNT, max_size=3).map(tuple), AMOUNT
)
GPUS = st.builds(
    Gpu,
    uuid=TEXT.filter(bool),
    index=st.integers(0, 100),
    model=TEXT,
    memory_mib=MAYBE,
    reserved_mib=AMOUNT,
    healthy=st.booleans(),
    reason=TEXT,
    numa_node=st.none() | st.integers(0, 8),
    pci_bus_id=TEXT,
    nvlink=st.lists(TEXT, max_size=3).map(tuple),
    mig=st.booleans(),
    mig_instances=st.lists(INSTANCES, max_size=3).map(tuple),
    used_mib=MAYBE,
    foreign_mib=AMOUNT,
    utilization=st.none() | st.integers(0, 100),
    promised_mib=MAYBE,
    promised_milli=MAYBE,
    sharers=MAYBE,
)
INVENTORIES = st.builds(
    Inventory,
    TEXT,
    st.lists(GPUS, max_size=4, unique_by=(lambda g: g.uuid, lambda g: g.index)).map(
        lambda gpus: tuple(sorted(gpus, key=lambda g: g.index))
    ),
    TEXT,
    TEXT,
    st.lists(PROFILES, max_size=3).map(tuple),
)

EXAMPLE = Inventory(
    "n1",
    (
        Gpu("GPU-1"),
        Gpu(
            "GPU-2",
            index=1,
            model="NVIDIA A100-SXM4-80GB",
            memory_mib=81920,
            reserved_mib=626,
            healthy=False,
            reason="Xid 79",
            numa_node=1,
            pci_bus_id="00000000:07:00.0",
            nvlink=("GPU-1",),
            mig=True,
            mig_instances=(
                MigInstance("MIG-1", "3g.40gb", 2, 0, 4, 40192, 12),
                MigInstance("MIG-2", "1g.10gb", 7, 0, 0, 9856, 0, healthy=False, reason="XID 95"),
            ),
            used_mib=18934,
            foreign_mib=6145,
            utilization=47,
            promised_mib=20480,
            promised_milli=500,
            sharers=1,
        ),
    ),
    driver_version="570.172.08",
    cuda_version="12.8",
    mig_profiles=(MigProfile("NVIDIA A100-SXM4-80GB", 9, "3g.40gb", 3, 40192, 2, (0, 4), 4),),
)


@given(INVENTORIES)
def test_roundtrip(inventory: Inventory) -> None:
    """What is encoded, and has been JSON, is decoded to the same."""
    assert decode(inventory.node, json.loads(json.dumps(encode(inventory)))) == inventory


def test_golden_status() -> None:
    """The status of a GPUNode is that of the golden file; what has its default is left out."""
    assert encode(EXAMPLE) == json.loads(GOLDEN.read_text())


def test_the_example_says_everything() -> None:
    """The golden file has every property there is."""
    golden = json.loads(GOLDEN.read_text())
    assert {*golden["gpus"][1], *golden["promises"][0]} == set(GPU_PROPERTIES)


@pytest.mark.parametrize("status", [None, {}, {"gpus": None}, {"gpus": []}])
def test_no_cards(status: dict[str, Any] | None) -> None:
    """A GPUNode whose agent has not written yet, or sees none, has no cards."""
    assert decode("n1", status) == Inventory("n1")


def test_cards_come_in_the_order_of_their_index() -> None:
    """The order in the object means nothing."""
    found = decode("n1", {"gpus": [{"uuid": "b", "index": 1}, {"uuid": "c", "index": 2}, {"uuid": "a", "index": 0}]})
    assert [gpu.uuid for gpu in found.gpus] == ["a", "b", "c"]


def test_unknown_and_null_fields_are_accepted() -> None:
    """A later release may say more; null is the same as absent."""
    status = {"later": [], "gpus": [{"uuid": "a", "later": {"x": 1}, "memoryMiB": None, "nvlink": None}]}
    assert decode("n1", status) == Inventory("n1", (Gpu("a"),))


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        pytest.param({"gpus": {}}, None, id="no cards, as Go may write it"),
        pytest.param({"gpus": {"a": 1}}, "GPUNode n1: gpus is not a list.", id="a map of cards"),
        pytest.param({"gpus": ["GPU-1"]}, "GPUNode n1 has a card without a uuid.", id="a text for a card"),
        pytest.param({"gpus": [{"index": 0}]}, "GPUNode n1 has a card without a uuid.", id="no uuid"),
        pytest.param({"gpus": [{"uuid": ""}]}, "GPUNode n1 has a card without a uuid.", id="an empty uuid"),
        pytest.param(
            {"gpus": [{"uuid": "a"}, {"uuid": "a", "index": 1}]},
            "GPUNode n1 lists a card twice; every uuid may appear once.",
            id="a card twice",
        ),
        pytest.param(
            {"gpus": [{"uuid": "a", "memoryMiB": "24Gi"}]},
            "GPUNode n1, card a: memoryMiB is '24Gi', which is not allowed there.",
            id="memory as a text",
        ),
        pytest.param(
            {"gpus": [{"uuid": "a", "index": True}]},
            "GPUNode n1, card a: index is True, which is not allowed there.",
            id="an index that is true",
        ),
        pytest.param(
            {"gpus": [{"uuid": "a", "foreignMiB": -2}]},
            "GPUNode n1, card a: foreignMiB is -2, which is not allowed there.",
            id="an amount below nothing",
        ),
        pytest.param(
            {"gpus": [{"uuid": "a", "healthy": 1}]},
            "GPUNode n1, card a: healthy is 1, which is not allowed there.",
            id="health as a number",
        ),
        pytest.param(
            {"gpus": [{"uuid": "a", "nvlink": [1]}]},
            "GPUNode n1, card a: nvlink is [1], which is not allowed there.",
            id="peers that are numbers",
        ),
        pytest.param(
            {"gpus": [{"uuid": "a", "migInstances": [{"start": 1}]}]},
            "GPUNode n1, card a: migInstances is [{'start': 1}], which is not allowed there.",
            id="a MIG instance without a uuid",
        ),
        pytest.param(
            {"migProfiles": [{"model": "A100", "starts": ["0"]}]},
            "GPUNode n1: starts is ['0'], which is not allowed there.",
            id="places that are texts",
        ),
    ],
)
def test_what_cannot_be_read(status: dict[str, Any], sentence: str | None) -> None:
    """A status that cannot be read is refused with one sentence that names the node and the card."""
    if sentence is None:
        assert decode("n1", status) == Inventory("n1")
        return
    with pytest.raises(BadInventory) as refused:
        decode("n1", status)
    assert str(refused.value) == sentence


@pytest.mark.parametrize("version", ["", "tessera.gpu/v2", "v1alpha1"])
def test_another_version_is_refused(version: str) -> None:
    """An unknown API version is not guessed at."""
    with pytest.raises(BadInventory) as refused:
        decode("n1", {}, version)
    assert str(refused.value) == f"GPUNode n1 has apiVersion {version!r}; this release reads {API_VERSION!r}."


NAMES = [*GPU_PROPERTIES, "gpus", "start", "model", "starts"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda of: st.lists(of, max_size=3) | st.dictionaries(st.sampled_from(NAMES), of, max_size=4),
    max_leaves=10,
)


@given(
    st.none()
    | st.dictionaries(
        st.sampled_from(["gpus", "migProfiles", "driverVersion", "conditions", "x"]), JSON | st.lists(JSON)
    )
)
def test_nothing_else_is_raised(status: dict[str, Any] | None) -> None:
    """Whatever an object's status holds, it is an inventory or a BadInventory."""
    with suppress(BadInventory):
        assert decode("n1", status).node == "n1"


@pytest.mark.parametrize(
    ("conditions", "enforced"),
    [
        pytest.param(as_status([(CONDITION, "True", "Limits", "")], (), "now"), True, id="as the agent writes it"),
        pytest.param(as_status([(CONDITION, "False", "Off", "")], (), "now"), False, id="switched off"),
        pytest.param(as_status([("Ready", "True", "Reporting", "")], (), "now"), False, id="another is true"),
        pytest.param(None, False, id="none yet"),
        pytest.param([None, {"type": CONDITION}, {"status": "True"}], False, id="halves of one"),
        pytest.param({"type": CONDITION, "status": "True"}, False, id="no list"),
    ],
)
def test_enforced_limits_are_a_condition(conditions: Any, enforced: bool) -> None:
    """It is read from the agent's condition, and not written by who encodes an inventory."""
    found = decode("n1", {"conditions": conditions})
    assert found == Inventory("n1", limits_enforced=enforced)
    assert encode(found) == {"gpus": []}


def test_cards_that_reach_each_other_say_so_in_one_word() -> None:
    """Behind a switch `nvlink` is `*`; with a peer missing, or a peer alone, it is their names."""
    uuids = ("GPU-a", "GPU-b", "GPU-c")
    all_to_all = Inventory("n1", tuple(Gpu(u, i, nvlink=tuple(set_without(uuids, u))) for i, u in enumerate(uuids)))
    assert [gpu["nvlink"] for gpu in encode(all_to_all)["gpus"]] == [["*"]] * 3
    assert decode("n1", encode(all_to_all)) == all_to_all
    pair = Inventory("n1", (Gpu("GPU-a", nvlink=("GPU-b",)), Gpu("GPU-b", 1, nvlink=("GPU-a",)), Gpu("GPU-c", 2)))
    assert [gpu.get("nvlink") for gpu in encode(pair)["gpus"]] == [["GPU-b"], ["GPU-a"], None]


def set_without(uuids: tuple[str, ...], one: str) -> list[str]:
    """Return the others, in order."""
    return sorted(set(uuids) - {one})


def test_a_promise_of_a_card_that_is_gone_makes_no_card() -> None:
    """The extender's words about a card may outlive the agent's."""
    promises = [{"uuid": uuid, "promisedMiB": 5, "promisedMilli": 10, "sharers": 1} for uuid in ("GPU-a", "GPU-b")]
    found = decode("n1", {"gpus": [{"uuid": "GPU-a", "index": 0, "healthy": True}], "promises": promises}).gpus
    assert [(gpu.uuid, gpu.promised_mib, gpu.promised_milli, gpu.sharers) for gpu in found] == [("GPU-a", 5, 10, 1)]
