"""Makes docs/metrics.md from the code: `python -m tests.metrics_page > docs/metrics.md`."""

from collections.abc import Iterable, Iterator

from extender.metrics import Metrics as Extender
from nodeagent.metrics import Metrics as Agent

HEAD = """# Metrics

Made from the code by `python -m tests.metrics_page`; a test compares. Units are base units: bytes, seconds, ratios
from 0 to 1. What the hardware itself tells (temperature, power, clocks) is the vendor's exporter's, and can be joined
by `gpu_uuid`.

Two rules for every series here: labels are bounded (cards, pods that share a card, fixed words), and a value that the
driver does not tell has no series, never a zero.
"""
PARTS = (
    ("The node agent", "Port 8582, `/metrics`, on every GPU node. The node is a label of the scrape."),
    ("The extender", "`/metrics` on the port of the verbs, or on the probe port where one is set."),
)


def rows(families: Iterable[tuple[str, str, str, tuple[str, ...]]]) -> Iterator[str]:
    """Yield a table of name, type, help and labels."""
    yield "| name | type | labels | what it tells |"
    yield "|---|---|---|---|"
    for name, kind, help_, labels in families:
        shown = ", ".join(f"`{label}`" for label in labels)
        yield f"| `{name}{'_total' if kind == 'counter' else ''}` | {kind} | {shown} | {help_} |"


def of_agent() -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Yield the families of an agent that has seen nothing."""
    for family in Agent().collect():
        yield family.name, family.type, family.documentation, tuple(family._labelnames)  # type: ignore[attr-defined]


def of_extender() -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Yield the families of an extender that was asked nothing."""
    for part in Extender().registry._collector_to_names:
        for family in part.collect():
            yield family.name, family.type, family.documentation, tuple(part._labelnames)  # type: ignore[attr-defined]


def page() -> str:
    """Return the whole page."""
    lines = [HEAD]
    for (title, where), families in zip(PARTS, (of_agent(), of_extender()), strict=True):
        lines += [f"## {title}", "", where, "", *rows(families), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
