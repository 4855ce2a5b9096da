"""doctor: is Tessera installed as it should be? Each check looks at what was gathered and says one sentence. Pure.

`ok`: as it should be. `warn`: it works, and something is to be known. `fail`: pods that ask for GPUs will wait, or
cards are not offered. What may not be read is a `warn` that says so: a check that did not look proves nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple
from typing import Final

import yaml

from contract.inventory import BadInventory, decode
from contract.names import GROUP, PLURAL, WHOLE_GPUS, Resources
from extender.kubectl.facts import Facts, Object, seconds, written
from extender.kubectl.table import Column, Report
from extender.pod import holding_of

Check = tuple[str, str, str]  # what was looked at; ok, warn or fail; a sentence

LEAST: Final = (1, 30)  # ValidatingAdmissionPolicy is on by default from here
SKEW_SECONDS: Final = 5.0
SHOWN: Final = 3
POLICIES: Final = ("tessera-assignment", "tessera-extender", "tessera-extender-nodes", "tessera-agent")
SERVICE: Final = "tessera-extender."  # the host's name in a URL begins with it
LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
VERBS: Final = {
    "filterVerb": "pods come to nodes without room for them",
    "prioritizeVerb": "pods are not packed",
    "bindVerb": "pods get no card",
}
COLUMNS: Final = (Column("CHECK", "check"), Column("STATE", "state"), Column("FOUND", "found"))


def diagnose(facts: Facts) -> Report:
    """Return one row a check; where nobody answers, that one alone."""
    looks = (_kubernetes,) if facts.version is None else _CHECKS
    checks = [check for look in looks for check in look(facts)]
    failed = sum(state == "fail" for _, state, _ in checks)
    warned = sum(state == "warn" for _, state, _ in checks)
    rows = [{"check": what, "state": state, "found": found} for what, state, found in checks]
    note = f"{len(rows)} checks, {failed} failed, {warned} to be looked at."
    return Report(COLUMNS, rows, [note], failed=bool(failed))


def _unseen(facts: Facts, what: str, fact: str) -> Check:
    return what, "warn", f"not looked at: {facts.missing.get(fact, 'no answer')}"


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _kubernetes(facts: Facts) -> Iterator[Check]:
    if facts.version is None:
        yield "kubernetes", "fail", f"the API server does not answer: {facts.missing.get('version', '')}"
        return
    said = str(facts.version.get("gitVersion", ""))
    numbers = [part for part in said.removeprefix("v").split(".")[:2] if part.isdigit()]
    old = len(numbers) == 2 and tuple(map(int, numbers)) < LEAST
    yield "kubernetes", "fail" if old else "ok", f"{said}{' is older than 1.30' if old else ''}"


def _versions(facts: Facts) -> Iterator[Check]:
    """Compare the plugin's version with the extender's."""
    if facts.about is None:
        why = facts.missing.get("about", "no answer")
        yield "extender", "warn", f"it does not answer through the API server, so explain tells less: {why}"
        return
    same = facts.about.version == facts.plugin
    yield "versions", "ok" if same else "warn", f"extender {facts.about.version}, plugin {facts.plugin}"
    refusal = facts.about.refusal
    yield "extender", "fail" if refusal else "ok", refusal or f"it answers, and packs by {facts.about.policy}"


def _crd(facts: Facts) -> Iterator[Check]:
    if facts.crd is None:
        yield "crd", "fail", f"{PLURAL}.{GROUP} is not there: {facts.missing.get('crd', '')}"
        return
    conditions = (facts.crd.get("status") or {}).get("conditions") or []
    on = any(c.get("type") == "Established" and c.get("status") == "True" for c in conditions)
    yield "crd", "ok" if on else "fail", f"{PLURAL}.{GROUP} is {'' if on else 'not '}established"


def _inventories(facts: Facts) -> Iterator[Check]:
    if facts.gpu_nodes is None:
        yield _unseen(facts, "inventory", "gpu_nodes")
        return
    cards, unreadable, unhealthy = 0, [], []
    for node in facts.gpu_nodes:
        try:
            inventory = decode(node.metadata.name, node.status, node.api_version)
        except BadInventory:
            unreadable.append(node.metadata.name)
            continue
        cards += len(inventory.gpus)
        unhealthy += [f"{gpu.uuid} on {inventory.node}" for gpu in inventory.gpus if not gpu.healthy]
    if not cards:
        yield "inventory", "fail", "no node has reported cards: do the agents run?"
    else:
        yield "inventory", "ok", f"{cards} cards on {len(facts.gpu_nodes)} nodes"
    if unreadable:
        yield "inventory", "fail", f"cannot be read: {_names(unreadable)}"
    if unhealthy:
        yield "cards", "warn", f"{len(unhealthy)} unhealthy: {_names(unhealthy)}"


def _agents(facts: Facts) -> Iterator[Check]:
    """Find agents that fell silent, never beat, or whose clock differs from the API server's.

    A Lease has both clocks: the agent's in renewTime, the API server's in its managed fields. One of a node without a
    GPUNode says nothing: it stays when a node is taken out, until the Node goes.
    """
    if facts.leases is None:
        yield _unseen(facts, "agents", "leases")
        return
    ours = None if facts.gpu_nodes is None else {node.metadata.name for node in facts.gpu_nodes}
    leases = {lease.metadata.name: lease for lease in facts.leases if ours is None or lease.metadata.name in ours}
    beats = {name: seconds(lease.spec.renew_time) for name, lease in leases.items()}
    last = {name: written(lease) for name, lease in leases.items()}
    limit, now = facts.installed.silent_seconds, max([facts.now, *last.values()])
    silent = sorted(name for name, at in last.items() if now - at > limit)
    if silent:
        yield "agents", "fail", f"{len(silent)} of {len(beats)} were silent for {limit:g} s: {_names(silent)}"
    elif beats:
        yield "agents", "ok", f"{len(beats)} agents beat"
    if without := sorted((ours or set()) - beats.keys()):
        yield "agents", "warn", f"no heartbeat for {_names(without)}: {_unheard(facts)}"
    yield from _clocks(beats, last)


def _unheard(facts: Facts) -> str:
    if facts.about is None:
        return f"none in {facts.installed.agent_namespace}, and the extender does not tell where it looks"
    return "their cards are offered without one"


def _clocks(beats: Mapping[str, float], last: Mapping[str, float]) -> Iterator[Check]:
    """Compare the agents' clocks with the API server's."""
    skew = {name: abs(beats[name] - last[name]) for name in beats if beats[name] and last[name]}
    wrong = sorted(name for name, off in skew.items() if off > SKEW_SECONDS)
    if skew:
        found = f"{len(wrong)} agents' clocks are more than {SKEW_SECONDS:g} s off: {_names(wrong)}"
        yield (
            "clocks",
            "warn" if wrong else "ok",
            found if wrong else "the agents' and the API server's agree",
        )


def _nodes(facts: Facts) -> Iterator[Check]:
    """Compare what nodes advertise with who has cards."""
    if facts.nodes is None or facts.gpu_nodes is None:
        yield _unseen(facts, "totals", "nodes")
        return
    have = {node.metadata.name for node in facts.gpu_nodes}
    there = {node.metadata.name: node.status.allocatable or {} for node in facts.nodes}
    lacking = sorted(n for n in have if n in there and facts.resources.share not in there[n])
    both = sorted(n for n in have if str(there.get(n, {}).get(WHOLE_GPUS, "0")) != "0")
    gone = sorted(have - there.keys())
    if lacking:
        yield (
            "totals",
            "fail",
            f"{_names(lacking)} advertise no {facts.resources.share}: does the extender run?",
        )
    elif have:
        yield "totals", "ok", f"{len(have - set(gone))} nodes advertise {facts.resources.share}"
    if both:
        yield "plugins", "fail", f"{WHOLE_GPUS} is advertised too by {_names(both)}: their cards are not offered"
    if gone:
        yield "inventory", "warn", f"no Node for the cards of {_names(gone)}"


def _records(facts: Facts) -> Iterator[Check]:
    if facts.pods is None:
        yield _unseen(facts, "records", "pods")
        return
    held = [h for pod in facts.pods if (h := holding_of(pod, facts.resources)) is not None]
    cards = _cards(facts)
    broken = [f"{h.namespace}/{h.name} on {h.node}" for h in held if h.problem]
    stray = [f"{h.namespace}/{h.name} on {h.node}" for h in held if h.unaccounted]
    lost = [f"{h.namespace}/{h.name} on {h.node}" for h in held if h.cards.keys() - cards.get(h.node, set())]
    if lost and facts.gpu_nodes is not None:
        yield "records", "fail", f"name cards that their nodes do not report, which closes them: {_names(lost)}"
    if broken:
        yield "records", "fail", f"cannot be read, which closes their nodes: {_names(broken)}"
    if stray:
        yield "records", "warn", f"on a node without a record, bound by something else: {_names(stray)}"
    if not (broken or stray or lost):
        yield "records", "ok", f"{sum(bool(h.cards) for h in held)} pods hold cards"


def _cards(facts: Facts) -> dict[str, set[str]]:
    """Return the UUIDs of the cards that each node reports."""
    found: dict[str, set[str]] = {}
    for node in facts.gpu_nodes or ():
        with suppress(BadInventory):
            inventory = decode(node.metadata.name, node.status, node.api_version)
            found[inventory.node] = {gpu.uuid for gpu in inventory.gpus}
    return found


def _webhook(facts: Facts) -> Iterator[Check]:
    if facts.webhooks is None:
        yield _unseen(facts, "webhook", "webhooks")
        return
    ours = [
        hook
        for configuration in facts.webhooks
        for hook in configuration.get("webhooks") or ()
        if str(hook.get("name", "")).endswith(GROUP)
    ]
    if not ours:
        yield "webhook", "warn", "none: pods have to give resources and annotations themselves"
    for hook in ours:
        trusted = bool((hook.get("clientConfig") or {}).get("caBundle"))
        why = f"failurePolicy {hook.get('failurePolicy')}" if trusted else "it has no caBundle, so nobody can call it"
        yield "webhook", "ok" if trusted else "fail", f"{hook.get('name')}: {why}"


def _policies(facts: Facts) -> Iterator[Check]:
    if facts.policies is None:
        yield _unseen(facts, "policies", "policies")
        return
    there = {str(item["metadata"]["name"]) for item in facts.policies}
    lacking = [name for name in POLICIES if name not in there]
    found = f"missing: {', '.join(lacking)}; records are not protected from others" if lacking else "all in force"
    yield "policies", "fail" if POLICIES[0] in lacking else "warn" if lacking else "ok", found


def _scheduler(facts: Facts) -> Iterator[Check]:
    """Read the scheduler configurations that are in ConfigMaps; one in a file on a host cannot be seen."""
    if facts.config_maps is None:
        yield _unseen(facts, "scheduler", "config_maps")
        return
    found = [
        (where, extender, said)
        for where, said in _configurations(facts.config_maps)
        for extender in said.get("extenders") or ()
        if _is_ours(extender, facts)
    ]
    if not found:
        yield "scheduler", "warn", "no ConfigMap has a configuration with our extender: it may be a file on a host"
    for where, extender, said in found:
        wrong = list(_wrong(extender, said, facts.resources))
        yield "scheduler", "fail" if wrong else "ok", f"{where}: {'; '.join(wrong) or 'as it is shipped'}"


def _configurations(config_maps: Sequence[Object]) -> Iterator[tuple[str, Object]]:
    for item in config_maps:
        for key, text in (item.get("data") or {}).items():
            if "KubeSchedulerConfiguration" not in text:
                continue
            try:
                said = yaml.safe_load(text)
            except yaml.YAMLError:
                continue
            if isinstance(said, dict):
                yield f"{item['metadata']['namespace']}/{item['metadata']['name']}, {key}", said


def _is_ours(extender: Object, facts: Facts) -> bool:
    """Say whether an extender of a configuration is Tessera's: by what it manages, or by where it is."""
    if _managed(extender).keys() & set(astuple(facts.resources)):
        return True
    place = str(extender.get("urlPrefix")).partition("://")[2].partition("/")[0]
    return place.startswith(SERVICE) or place in [f"{host}:{facts.installed.port}" for host in LOOPBACK]


def _managed(extender: Object) -> dict[str, bool]:
    """Return whether kube-scheduler ignores a resource, for each that is managed."""
    entries = extender.get("managedResources") or ()
    return {str(entry.get("name")): bool(entry.get("ignoredByScheduler")) for entry in entries}


def _wrong(extender: Object, configuration: Object, resources: Resources) -> Iterator[str]:
    managed, ours = _managed(extender), set(astuple(resources))
    if managed and not ours <= managed.keys():
        yield f"managedResources lacks {', '.join(sorted(ours - managed.keys()))}"
    if ignored := sorted(name for name in ours if managed.get(name)):
        yield f"ignoredByScheduler is true for {', '.join(ignored)}: kube-scheduler does not count what pods take"
    for verb, what in VERBS.items():
        if not extender.get(verb):
            yield f"{verb} is missing: {what}"
    if not extender.get("nodeCacheCapable"):
        yield "nodeCacheCapable is not true"
    if extender.get("ignorable"):
        yield "ignorable is true: a pod may be bound without a card"
    if configuration.get("percentageOfNodesToScore") != 100:
        yield "percentageOfNodesToScore is not 100: nodes outside of the sample are never asked about"


_CHECKS: Final = (
    _kubernetes,
    _versions,
    _crd,
    _inventories,
    _agents,
    _nodes,
    _records,
    _webhook,
    _policies,
    _scheduler,
)
