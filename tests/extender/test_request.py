"""What a pod asks for, row by row, and every sentence of refusal, word by word."""

import pytest

from contract.names import Resources
from extender.pod import Request, asks_us, request_of
from extender.request import MOST_CARDS, BadDemand
from extender.wire import Pod
from scoring.model import WHOLE, Ask
from scoring.policies import POLICIES
from tests.builders import container, plain, pod

GPU_MEMORY, UTILIZATION, SHARE = "nvidia.com/gpu-memory", "nvidia.com/gpu-utilization", "tessera.gpu/share"
RENAMED = Resources("example.com/mem", "example.com/sm", "example.com/place")


def asks(asking: Pod, resources: Resources | None = None) -> Request:
    """Return what a pod asks, which must be something."""
    request = request_of(asking, resources or Resources())
    assert request is not None
    return request


def the_ask(asking: Pod) -> Ask:
    """Return the ask of a pod with one GPU container."""
    (ask,) = asks(asking).demand.asks
    return ask


@pytest.mark.parametrize(
    ("asking", "ask"),
    [
        pytest.param(pod(memory="4Gi"), Ask(mib=4096), id="memory in Gi, no compute reserved"),
        pytest.param(pod(memory="25%"), Ask(mib=1, percent=25), id="memory in percent of the chosen card"),
        pytest.param(pod(memory="1.5Gi"), Ask(mib=1536), id="a fraction of a unit"),
        pytest.param(pod(memory="1048577"), Ask(mib=2), id="bytes, rounded up to whole MiB"),
        pytest.param(pod(memory="1Mi"), Ask(mib=1), id="the least memory"),
        pytest.param(pod(memory="4Gi", utilization="50%"), Ask(mib=4096, milli=500), id="memory and compute"),
        pytest.param(pod(memory="4Gi", utilization="50"), Ask(mib=4096, milli=500), id="compute without a sign"),
        pytest.param(
            pod(memory="4Gi", utilization="100%"), Ask(mib=4096, milli=1000), id="all compute is no whole card"
        ),
        pytest.param(pod(memory=None, utilization="30%"), Ask(percent=30, milli=300), id="compute brings its memory"),
        pytest.param(pod(memory=None, utilization="100%"), WHOLE, id="compute of 100 % alone is a whole card"),
        pytest.param(pod(memory="4Gi", count="2"), Ask(count=2, mib=4096), id="the same share of two cards"),
        pytest.param(
            pod(memory=None, count="2"),
            Ask(2, percent=100, milli=1000, exclusive=True, whole=True),
            id="whole cards by count alone",
        ),
        pytest.param(plain(limits={GPU_MEMORY: "4Gi"}), Ask(mib=4096), id="resource: memory"),
        pytest.param(plain(limits={GPU_MEMORY: 1 << 30}), Ask(mib=1024), id="resource: memory as a number"),
        pytest.param(plain(requests={GPU_MEMORY: "4Gi"}), Ask(mib=4096), id="resource: requests count as limits do"),
        pytest.param(
            plain(limits={GPU_MEMORY: "4Gi", UTILIZATION: "50"}), Ask(mib=4096, milli=500), id="resource: both"
        ),
        pytest.param(plain(limits={UTILIZATION: "30"}), Ask(percent=30, milli=300), id="resource: compute alone"),
        pytest.param(
            plain(limits={SHARE: "2", UTILIZATION: "200"}),
            Ask(2, percent=100, milli=1000, exclusive=True, whole=True),
            id="resource: whole cards",
        ),
        pytest.param(
            plain(limits={GPU_MEMORY: "8Gi", UTILIZATION: "60", SHARE: "2"}),
            Ask(2, mib=4096, milli=300),
            id="resource: totals are divided by the share",
        ),
        pytest.param(
            pod(memory=None, count="2", limits={GPU_MEMORY: "8Gi"}),
            Ask(2, mib=4096),
            id="totals divided by the count",
        ),
        pytest.param(
            pod(memory=None, count="3", limits={GPU_MEMORY: "10Mi"}), Ask(3, mib=4), id="divided, rounded up"
        ),
        pytest.param(
            pod(
                memory="4Gi", utilization="50%", count="2", limits={GPU_MEMORY: "8Gi", UTILIZATION: "100", SHARE: "2"}
            ),
            Ask(2, mib=4096, milli=500),
            id="both forms with equal numbers",
        ),
        pytest.param(
            pod(memory="4Gi", limits={UTILIZATION: "50"}), Ask(mib=4096, milli=500), id="each form says one thing"
        ),
        pytest.param(
            pod(memory="4Gi", annotations={"tessera.gpu/memory.main": "4Gi"}),
            Ask(mib=4096),
            id="the default container is addressed twice with one number",
        ),
        pytest.param(
            pod(annotations={"tessera.gpu/sharing": "none"}), Ask(mib=4096, exclusive=True), id="nobody may join"
        ),
        pytest.param(pod(annotations={"tessera.gpu/sharing": "any"}), Ask(mib=4096), id="anybody may join"),
        pytest.param(
            pod(annotations={"tessera.gpu/sharing": "namespace"}), Ask(mib=4096), id="its namespace may join"
        ),
        pytest.param(
            pod(
                annotations={
                    "tessera.gpu/assignment": "{",
                    "tessera.gpu/devices.main": "GPU-1",
                    "tessera.gpu/retry": "3",
                    "tessera.gpu/leader": "a_1",
                }
            ),
            Ask(mib=4096),
            id="what we write ourselves asks for nothing",
        ),
    ],
)
def test_a_request_is_read(asking: Pod, ask: Ask) -> None:
    """Each way of asking becomes the ask that it means."""
    assert the_ask(asking) == ask


@pytest.mark.parametrize(
    "asking",
    [
        pytest.param(plain(), id="no annotation, no resource"),
        pytest.param(plain(limits={"cpu": "1", "nvidia.com/gpu": "1"}), id="another plugin's GPU"),
        pytest.param(plain(annotations={"example.com/memory": "4Gi"}), id="another's annotation"),
        pytest.param(plain(containers=[]), id="no containers"),
    ],
)
def test_a_pod_that_asks_nothing(asking: Pod) -> None:
    """A pod that does not speak to us has no request."""
    assert request_of(asking, Resources()) is None


@pytest.mark.parametrize("name", [GPU_MEMORY, UTILIZATION, SHARE])
def test_nothing_of_a_resource_is_no_request(name: str) -> None:
    """It is refused, and where such a pod runs already it holds nothing; beside a request it may stand."""
    zero = plain(requests={name: 0}, init=[container("setup")])
    with pytest.raises(BadDemand, match=f"^{name} is 0, which asks for nothing: leave it out.$"):
        request_of(zero, Resources())
    assert not asks_us(zero, Resources())
    assert the_ask(pod(memory="4Gi", limits={name: "0"})) == Ask(mib=4096)


def test_resource_names_are_settings() -> None:
    """Renamed resources are read, and the default names mean nothing then."""
    renamed = plain(limits={"example.com/mem": "8Gi", "example.com/sm": "60", "example.com/place": "2"})
    assert asks(renamed, RENAMED).demand.asks == (Ask(2, mib=4096, milli=300),)
    assert request_of(plain(limits={GPU_MEMORY: "4Gi"}), RENAMED) is None


def test_rules_of_the_whole_pod() -> None:
    """Models come without case, UUIDs sorted and once, the policy by its name."""
    request = asks(
        pod(
            annotations={
                "tessera.gpu/model": "NVIDIA A100-SXM4-80GB, !T4, !NVIDIA H100*",
                "tessera.gpu/uuid": "GPU-b,GPU-a, GPU-b",
                "tessera.gpu/policy": "spread",
            }
        )
    )
    assert request.demand.models == ("nvidia a100-sxm4-80gb", "!t4", "!nvidia h100*")
    assert request.demand.uuids == ("GPU-a", "GPU-b")
    assert request.policy == "spread"


# --- which container -----------------------------------------------------------------------------------------

TWO = [container("app"), container("helper")]


@pytest.mark.parametrize(
    ("notes", "names"),
    [
        pytest.param({"tessera.gpu/memory": "4Gi"}, ("app",), id="a bare key speaks of the first container"),
        pytest.param({"tessera.gpu/memory.helper": "4Gi"}, ("helper",), id="an addressed key of the one it names"),
        pytest.param(
            {"tessera.gpu/memory": "4Gi", "kubectl.kubernetes.io/default-container": "helper"},
            ("helper",),
            id="a bare key of the default container if there is one",
        ),
        pytest.param({"tessera.gpu/memory.setup": "4Gi"}, ("setup",), id="an init container can be addressed"),
        pytest.param(
            {"tessera.gpu/memory": "4Gi", "tessera.gpu/count.helper": "1"},
            ("app", "helper"),
            id="bare and addressed keys together",
        ),
    ],
)
def test_container_addressing(notes: dict[str, str], names: tuple[str, ...]) -> None:
    """A key speaks of the container that it means, and of no other."""
    request = asks(plain(annotations=notes, containers=TWO, init=[container("setup")]))
    assert request.containers == names


# --- refusals ------------------------------------------------------------------------------------------------

REFUSALS = [
    (
        "a forgotten unit",
        pod(memory="4096"),
        "tessera.gpu/memory is '4096', which is below 1Mi: was 4096Mi or 4096Gi meant?",
    ),
    (
        "memory below 1Mi",
        pod(memory="512Ki"),
        "tessera.gpu/memory is '512Ki', which is below 1Mi: the least is 1Mi.",
    ),
    (
        "memory below nothing",
        pod(memory="-4Gi"),
        "tessera.gpu/memory is '-4Gi', which is below 1Mi: the least is 1Mi.",
    ),
    (
        "memory that is no quantity",
        pod(memory="4 GB"),
        "tessera.gpu/memory is '4 GB': '4 GB' is not a quantity such as 4Gi, 512Mi or 2"
        "; a percentage such as 25% is allowed too.",
    ),
    (
        "empty memory",
        pod(memory=""),
        "tessera.gpu/memory is '': '' is not a quantity such as 4Gi, 512Mi or 2;"
        " a percentage such as 25% is allowed too.",
    ),
    ("memory of no card", pod(memory="5Pi"), "tessera.gpu/memory is '5Pi', more than any card has."),
    (
        "memory beyond all numbers",
        pod(memory="99Ei"),
        "tessera.gpu/memory is '99Ei': '99Ei' is larger than 2^63-1, the largest quantity there is"
        "; a percentage such as 25% is allowed too.",
    ),
    ("no percent", pod(memory="0%"), "tessera.gpu/memory is '0%', which is not a whole percentage from 1 to 100."),
    (
        "a broken percentage",
        pod(memory="12.5%"),
        "tessera.gpu/memory is '12.5%', which is not a whole percentage from 1 to 100.",
    ),
    (
        "utilization above a card",
        pod(utilization="101"),
        "tessera.gpu/utilization is '101', which is not a whole percentage from 1 to 100.",
    ),
    (
        "utilization as a share of one",
        pod(utilization="0.5"),
        "tessera.gpu/utilization is '0.5', which is not a whole percentage from 1 to 100.",
    ),
    ("no cards", pod(count="0"), f"tessera.gpu/count is '0', which is not a whole number from 1 to {MOST_CARDS}."),
    (
        "half a card",
        pod(count="0.5"),
        f"tessera.gpu/count is '0.5', which is not a whole number from 1 to {MOST_CARDS}.",
    ),
    (
        "too many cards",
        pod(count="65"),
        f"tessera.gpu/count is '65', which is not a whole number from 1 to {MOST_CARDS}.",
    ),
    (
        "a MIG slice",
        plain(annotations={"tessera.gpu/mig-profile": "1g.10gb"}),
        "tessera.gpu/mig-profile is '1g.10gb', but this release places no MIG slices yet.",
    ),
    (
        "a key misspelt",
        plain(annotations={"tessera.gpu/memroy": "4Gi"}),
        "tessera.gpu/memroy is not an annotation of Tessera: did you mean tessera.gpu/memory?",
    ),
    (
        "a key that nobody knows",
        plain(annotations={"tessera.gpu/xyz": "1"}),
        "tessera.gpu/xyz is not an annotation of Tessera: the keys are"
        " memory, utilization, count, mig-profile, model, uuid, policy, sharing.",
    ),
    (
        "a pod's key for a container",
        pod(annotations={"tessera.gpu/model.main": "T4"}),
        "tessera.gpu/model.main is not an annotation of Tessera:"
        " tessera.gpu/model speaks of the whole pod and takes no container.",
    ),
    (
        "a container that is not there",
        plain(annotations={"tessera.gpu/memory.main2": "4Gi"}, init=[container("setup")]),
        "tessera.gpu/memory.main2 names the container 'main2', which the pod does not have: it has setup, main.",
    ),
    (
        "a default container that is not there",
        pod(annotations={"kubectl.kubernetes.io/default-container": "gone"}),
        "kubectl.kubernetes.io/default-container names the container 'gone', which the pod does not have.",
    ),
    (
        "two numbers for one container",
        pod(memory="4Gi", annotations={"tessera.gpu/memory.main": "5Gi"}),
        "tessera.gpu/memory.main is '5Gi', but another annotation says otherwise for the container 'main'.",
    ),
    (
        "an amount and a percentage for one container",
        pod(memory="4Gi", annotations={"tessera.gpu/memory.main": "25%"}),
        "tessera.gpu/memory is given twice for the container 'main', as an amount and in percent: give one.",
    ),
    (
        "both forms, different memory",
        pod(memory="4Gi", limits={GPU_MEMORY: "5Gi"}),
        "The container 'main' asks for its memory twice, by annotation and by resource,"
        " with different numbers: give one, or the same amount per card.",
    ),
    (
        "both forms, memory in percent",
        pod(memory="25%", limits={GPU_MEMORY: "5Gi"}),
        "The container 'main' asks for its memory twice, by annotation and by resource,"
        " and a percentage has no total: give one, or the same amount per card.",
    ),
    (
        "both forms, different compute",
        pod(utilization="50%", limits={UTILIZATION: "60"}),
        "The container 'main' asks for its utilization twice, by annotation and by resource,"
        " with different numbers: give one, or the same amount per card.",
    ),
    (
        "both forms, different counts",
        pod(count="2", limits={SHARE: "3"}),
        "tessera.gpu/share is 3, but tessera.gpu/count is 2: they must be equal.",
    ),
    (
        "a resource with a forgotten unit",
        plain(limits={GPU_MEMORY: 4096}),
        "nvidia.com/gpu-memory is 4096 bytes for 1 card(s), below 1Mi each: was a unit forgotten?",
    ),
    (
        "a resource that is no quantity",
        plain(limits={GPU_MEMORY: "many"}),
        "nvidia.com/gpu-memory is 'many': 'many' is not a quantity such as 4Gi, 512Mi or 2.",
    ),
    (
        "a resource below nothing",
        plain(limits={UTILIZATION: "-1"}),
        "nvidia.com/gpu-utilization is '-1', which is not a whole number from 0.",
    ),
    (
        "half a resource",
        plain(limits={UTILIZATION: "500m"}),
        "nvidia.com/gpu-utilization is '500m', which is not a whole number from 0.",
    ),
    (
        "memory of no card as a resource",
        plain(limits={GPU_MEMORY: "5Pi"}),
        "nvidia.com/gpu-memory is 5629499534213120 bytes, more than any card has.",
    ),
    (
        "utilization that the cards do not divide",
        plain(limits={UTILIZATION: "75", SHARE: "2"}),
        "nvidia.com/gpu-utilization is 75 for 2 card(s); it must be 2 times a whole number from 1 to 100.",
    ),
    (
        "utilization above the cards",
        plain(limits={UTILIZATION: "150"}),
        "nvidia.com/gpu-utilization is 150 for 1 card(s); it must be 1 times a whole number from 1 to 100.",
    ),
    (
        "too many shares",
        plain(limits={SHARE: "100"}),
        f"tessera.gpu/share is 100, which is not a whole number from 1 to {MOST_CARDS}.",
    ),
    (
        "a rule without a request",
        plain(annotations={"tessera.gpu/model": "T4"}),
        "tessera.gpu/model is given, but no container asks for a GPU: add memory, utilization or count.",
    ),
    (
        "nothing of a resource",
        plain(limits={SHARE: "0"}),
        "tessera.gpu/share is 0, which asks for nothing: leave it out.",
    ),
    (
        "no model",
        pod(annotations={"tessera.gpu/model": "T4,,A10"}),
        "tessera.gpu/model is 'T4,,A10', which is not at most 64 model names or globs with commas between,"
        ' "!" in front excluding one.',
    ),
    (
        "no uuid",
        pod(annotations={"tessera.gpu/uuid": "GPU_1"}),
        "tessera.gpu/uuid is 'GPU_1', which is not at most 64 GPU UUIDs with commas between.",
    ),
    (
        "an unknown policy",
        pod(annotations={"tessera.gpu/policy": "best"}),
        f"tessera.gpu/policy is 'best', which is not one of {', '.join(sorted(POLICIES))}.",
    ),
    (
        "sharing with some",
        pod(annotations={"tessera.gpu/sharing": "some"}),
        "tessera.gpu/sharing is 'some', which is not any, namespace or none.",
    ),
]


@pytest.mark.parametrize(("asking", "sentence"), [pytest.param(p, s, id=name) for name, p, s in REFUSALS])
def test_a_refusal_says_why(asking: Pod, sentence: str) -> None:
    """A request that cannot be read is refused with its sentence, the same at every call."""
    for _ in range(2):
        with pytest.raises(BadDemand) as refused:
            request_of(asking, Resources())
        assert str(refused.value) == sentence


@pytest.mark.parametrize("key", ["model", "uuid"])
def test_a_list_is_short(key: str) -> None:
    """Every card of the cluster is compared with each entry: 64 of 96 letters are taken, not more nor longer ones."""
    longest = ",".join(f"{i:096d}" for i in range(64))
    assert request_of(pod(annotations={f"tessera.gpu/{key}": longest}), Resources())
    for value in (f"{longest},A", ",".join("A" * 65), "A" * 97, "A" * 100_000):
        with pytest.raises(BadDemand, match="which is not at most 64 "):
            request_of(pod(annotations={f"tessera.gpu/{key}": value}), Resources())


@pytest.mark.parametrize(
    "key", ["memory", "utilization", "count", "model", "uuid", "policy", "sharing", "mig-profile"]
)
@pytest.mark.parametrize("value", ["9" * 100_000, "9" * 100_000 + "%", "é," * 100_000])
def test_a_refusal_is_short(key: str, value: str) -> None:
    """The sentence goes out once for every node, so a value of 100 kB is not repeated in it."""
    with pytest.raises(BadDemand) as refused:
        request_of(pod(memory=None, annotations={f"tessera.gpu/{key}": value}), Resources())
    assert len(str(refused.value)) < 500
