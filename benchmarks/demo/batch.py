"""The pods of the demo: the sharing example first, then a mix of everything a pod can ask, by seed.

A pod is what kube-scheduler would send. Nothing here knows how it will be placed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from contract.names import COUNT, MEMORY, MODEL, PREFIX, SHARING, UTILIZATION, Resources

NAMESPACE: Final = "demo"
RESOURCES: Final = Resources()
FACTOR_NODE: Final = "a10x1-0"  # one A10, whose compute is promised 1.3 times
PLAIN_NODE: Final = "a10x1-1"  # one A10 at a factor of 1.0
TRIO: Final = ("inference-0", "inference-1", "inference-2")
FIXED: Final = 13  # pods that are in every batch


@dataclass(frozen=True, slots=True)
class Wanted:
    """A pod to schedule, and what its author would have asked for if only whole cards could be had.

    `cards` is the most that one of its containers sits on at a time, each with at least `mib` of memory: no pod
    could do with fewer whole cards. `sound` says that the request can be meant, and met on an empty cluster.
    """

    pod: dict[str, Any]
    cards: int = 1
    mib: int = 0
    sound: bool = True

    @property
    def name(self) -> str:
        """The pod's name."""
        return str(self.pod["metadata"]["name"])

    @property
    def uid(self) -> str:
        """The pod's UID."""
        return str(self.pod["metadata"]["uid"])

    @property
    def selector(self) -> str | None:
        """The only node that the pod's author allows, if there is one."""
        found = self.pod["spec"].get("nodeSelector", {}).get("kubernetes.io/hostname")
        return None if found is None else str(found)

    @property
    def model(self) -> str:
        """What the pod says about the card's model, "" if nothing."""
        return str(self.pod["metadata"]["annotations"].get(MODEL, ""))

    def requested(self, resource: str) -> int:
        """Return what the pod's containers request together of `cpu` (thousandths) or `memory` (MiB)."""
        unit = {"cpu": "m", "memory": "Mi"}[resource]
        found = [c["resources"]["requests"][resource] for c in _running(self.pod)]
        return sum(int(value.removesuffix(unit)) for value in found)


def batch(seed: int, count: int) -> list[Wanted]:
    """Return so many pods (at least `FIXED`): the example, then the rest in an order that the seed gives."""
    rng = Random(seed)
    rest = [*_curiosities(), *_mix(rng, count - FIXED)]
    rng.shuffle(rest)
    wanted = [*_example("", FACTOR_NODE), *_example("plain-", PLAIN_NODE), *rest]
    for one in wanted:
        one.pod["metadata"]["uid"] = str(uuid5(NAMESPACE_URL, f"tessera/demo/{seed}/{one.name}"))
    return wanted


def _example(prefix: str, node: str) -> list[Wanted]:
    """Return one trainer and three inference pods that may run on one node alone, which has one A10."""
    trainer = _share(f"{prefix}trainer", "8Gi", 70, {MODEL: "A10"})
    inference = [_share(prefix + name, "2Gi", 20, {MODEL: "A10"}) for name in TRIO]
    for one in (trainer, *inference):
        one.pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    return [trainer, *inference]


def _curiosities() -> list[Wanted]:
    """Return pods that every batch has once: without a GPU, too large for any card, misspelled, alone on a card."""
    return [
        Wanted(_pod("etl-0", {}, [_container("main", cpu=4000, ram=8192)]), 0),
        Wanted(_pod("etl-1", {}, [_container("main", cpu=4000, ram=8192)]), 0),
        Wanted(_pod("colossus", {MEMORY: "200Gi"}), 1, 200 << 10, sound=False),
        Wanted(_pod("typo", {MEMORY: "4Gx", UTILIZATION: "20%"}), 1, sound=False),
        _share("private", "10Gi", 30, {SHARING: "none"}),
    ]


def _mix(rng: Random, count: int) -> list[Wanted]:
    kinds = rng.choices([kind for kind, _ in KINDS], [weight for _, weight in KINDS], k=count)
    return [kind(rng, number) for number, kind in enumerate(kinds)]


# --- kinds of pods ------------------------------------------------------------------------------------------


def _chat(rng: Random, number: int) -> Wanted:
    return _share(f"chat-{number}", f"{rng.choice((2, 3, 4, 6, 8))}Gi", rng.choice((10, 15, 20, 25)))


def _embedder(rng: Random, number: int) -> Wanted:
    """Ask for memory alone: no compute is reserved."""
    gib = rng.choice((1, 2, 4))
    return Wanted(_pod(f"embedder-{number}", {MEMORY: f"{gib}Gi"}), 1, gib << 10)


def _notebook(rng: Random, number: int) -> Wanted:
    """Ask for compute alone: memory is the same percentage of whichever card it is."""
    return Wanted(_pod(f"notebook-{number}", {UTILIZATION: f"{rng.choice((20, 25, 30, 40))}%"}))


def _student(rng: Random, number: int) -> Wanted:
    """Ask for memory in percent."""
    said = {MEMORY: f"{rng.choice((10, 25, 50))}%", UTILIZATION: f"{rng.choice((20, 30, 50))}%"}
    return Wanted(_pod(f"student-{number}", said))


def _parallel(rng: Random, number: int) -> Wanted:
    return _share(f"parallel-{number}", f"{rng.choice((8, 12, 20))}Gi", rng.choice((20, 30, 40)), {COUNT: "2"})


def _whole(rng: Random, number: int) -> Wanted:
    """Ask for whole cards, which nobody joins."""
    cards = rng.choice((1, 1, 2))
    return Wanted(_pod(f"whole-{number}", {COUNT: str(cards)}, [_container("main", cpu=4000, ram=16384)]), cards)


def _totals(rng: Random, number: int) -> Wanted:
    """Ask by resources, which are totals of the container's cards."""
    cards, gib, percent = rng.choice((1, 1, 1, 2)), rng.choice((2, 4, 6)), rng.choice((10, 20, 30))
    limits = {
        RESOURCES.memory: f"{cards * gib}Gi",
        RESOURCES.utilization: str(cards * percent),
        RESOURCES.share: str(cards),
    }
    return Wanted(_pod(f"totals-{number}", {}, [_container("main", limits=limits)]), cards, gib << 10)


def _pipeline(rng: Random, number: int) -> Wanted:
    """Ask container by container: one that ends before the others start, a sidecar, a proxy that needs no card.

    On the large cards compute runs out before memory, so even a reader who adds up all containers of a record,
    as if they ran at once, finds that they fit.
    """
    gib = rng.choice((2, 3, 4))
    said = {
        MODEL: "A100-SXM4-80GB, H100 80GB HBM3",
        f"{MEMORY}.compile": "1Gi",
        f"{MEMORY}.tracker": "512Mi",
        f"{UTILIZATION}.tracker": "5%",
        f"{MEMORY}.decode": "1Gi",
        f"{UTILIZATION}.decode": "10%",
        f"{MEMORY}.detect": f"{gib}Gi",
        f"{UTILIZATION}.detect": f"{rng.choice((20, 30))}%",
    }
    tracker = {**_container("tracker"), "restartPolicy": "Always"}
    inits = [_container("compile"), tracker]
    main = [_container(name) for name in ("decode", "detect", "proxy")]
    return Wanted(_pod(f"pipeline-{number}", said, main, inits), 1, gib << 10)


def _picky(rng: Random, number: int) -> Wanted:
    """Ask for a model, or for any but one."""
    model = rng.choice(("A100-SXM4-80GB", "A100-SXM4-80GB", "RTX A6000", "!Tesla T4"))
    return _share(f"picky-{number}", f"{rng.choice((10, 16, 20))}Gi", rng.choice((25, 40)), {MODEL: model})


KINDS: Final[Sequence[tuple[Callable[[Random, int], Wanted], int]]] = (
    (_chat, 36),
    (_totals, 16),
    (_notebook, 11),
    (_student, 9),
    (_embedder, 8),
    (_picky, 8),
    (_parallel, 5),
    (_pipeline, 5),
    (_whole, 2),
)


# --- pod JSON -----------------------------------------------------------------------------------------------


def _share(name: str, memory: str, percent: int, more: dict[str, str] | None = None) -> Wanted:
    """Return a pod of one container, with a share of as many cards as `more` says."""
    said = {MEMORY: memory, UTILIZATION: f"{percent}%", **(more or {})}
    return Wanted(_pod(name, said), int(said.get(COUNT, "1")), int(memory.removesuffix("Gi")) << 10)


def _container(name: str, cpu: int = 500, ram: int = 1024, limits: dict[str, str] | None = None) -> dict[str, Any]:
    requests = {"cpu": f"{cpu}m", "memory": f"{ram}Mi", **(limits or {})}
    return {
        "name": name,
        "image": f"example/{name}:1.0",
        "resources": {"limits": limits or {}, "requests": requests},
        "terminationMessagePath": "/dev/termination-log",
        "imagePullPolicy": "IfNotPresent",
    }


def _pod(
    name: str,
    annotations: dict[str, str],
    containers: list[dict[str, Any]] | None = None,
    inits: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return a pod as kube-scheduler sends it, but for its UID."""
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "creationTimestamp": "2026-12-01T08:00:00Z",
            "labels": {"app.kubernetes.io/name": name.rpartition("-")[0] or name},
            "annotations": annotations,
        },
        "spec": {
            "containers": containers or [_container("main")],
            **({"initContainers": inits} if inits else {}),
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
            "serviceAccountName": "default",
            "priority": 0,
            "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": {"phase": "Pending", "qosClass": "Burstable"},
    }


def _running(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the containers that run when all init containers have ended."""
    sidecars = [c for c in pod["spec"].get("initContainers", []) if c.get("restartPolicy") == "Always"]
    return [*sidecars, *pod["spec"]["containers"]]


# --- a request in words -------------------------------------------------------------------------------------


def words(pod: dict[str, Any]) -> str:
    """Return what a pod asks, as short as a line of a table takes: `2 x 20Gi 50%`, `8Gi 70% on A10`."""
    said = {key: value for key, value in (pod["metadata"].get("annotations") or {}).items() if key.startswith(PREFIX)}
    containers = [*(pod["spec"].get("initContainers") or []), *(pod["spec"].get("containers") or [])]
    bare = (pod["spec"].get("containers") or [{"name": ""}])[0]["name"]
    asks = [(c["name"], _ask(said, c, bare=c["name"] == bare)) for c in containers]
    asks = [(name, ask) for name, ask in asks if ask]
    text = asks[0][1] if len(asks) == 1 else ", ".join(f"{name} {ask}" for name, ask in asks)
    text += f" on {said[MODEL]}" if MODEL in said else ""
    return (text + (", alone" if said.get(SHARING) == "none" else "")) or "no GPU"


def _ask(said: dict[str, str], container: dict[str, Any], *, bare: bool) -> str:
    def of(key: str) -> str | None:
        return said.get(f"{key}.{container['name']}", said.get(key) if bare else None)

    limits = (container.get("resources") or {}).get("limits") or {}
    if RESOURCES.share in limits:
        cards = _cards(limits[RESOURCES.share])
        return f"{limits[RESOURCES.memory]} {limits[RESOURCES.utilization]}% over {cards}"
    memory, utilization, count = of(MEMORY), of(UTILIZATION), of(COUNT)
    if memory is None and utilization is None:
        return "" if count is None else f"{_cards(count)}, whole"
    if memory is None:
        share = f"{utilization} compute"
    else:
        share = f"{memory}{' memory' * memory.endswith('%')} {utilization or ''}".strip()
    return f"{count} x {share}" if count else share


def _cards(count: str) -> str:
    return f"{count} card{'' if count == '1' else 's'}"
