"""Rules and dashboard speak of metrics and labels that the code exports, and every alert says what to do."""

import json
import re
from typing import Any, Final

import pytest
import yaml

from tests import metrics_page
from tests.deploy.test_deploy import DEPLOY

Json = dict[str, Any]
FOLDER: Final = DEPLOY / "monitoring"
DCGM: Final = {"DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_UTIL"}
ADDED: Final = {"node", "instance"}  # by the scrape
NAME: Final = re.compile(r"\b(?:[a-z_]+:)?(?:tessera_|DCGM_)\w+(?::\w+)?")


def exported() -> dict[str, set[str]]:
    """Return the labels of every series that the code exports, by its name."""
    found: dict[str, set[str]] = {}
    for name, kind, _, labels in (*metrics_page.of_agent(), *metrics_page.of_extender()):
        ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(kind, ("",))
        for end in ends:
            found[name + end] = {*labels, *(("le",) if end == "_bucket" else ())}
    return found


def rules() -> list[Json]:
    """Return every rule."""
    said = yaml.safe_load((FOLDER / "rules.yaml").read_text())
    return [rule for group in said["groups"] for rule in group["rules"]]


def panels() -> list[Json]:
    """Return every panel of the dashboard that shows something."""
    said = json.loads((FOLDER / "dashboard.json").read_text())
    return [panel for panel in said["panels"] if panel["type"] != "row"]


RECORDED: Final = {rule["record"] for rule in rules() if "record" in rule}


def expressions() -> list[str]:
    """Return everything that is asked of Prometheus."""
    return [rule["expr"] for rule in rules()] + [target["expr"] for panel in panels() for target in panel["targets"]]


@pytest.mark.parametrize("expression", expressions())
def test_every_metric_exists(expression: str) -> None:
    """A name is one that the code exports, a rule records, or dcgm-exporter has; its labels are its own."""
    known = exported()
    for name in NAME.findall(expression):
        assert name in known or name in RECORDED or name in DCGM, name
    for name, matchers in re.findall(r"\b(tessera_\w+)\{([^}]*)\}", expression):
        asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        assert asked <= known.get(name, set()) | ADDED | {"namespace"}, name


def test_dashboard_shows_what_is_exported() -> None:
    """No metric of the code is in neither rules nor dashboard, but those named here."""
    asked = {name for expression in expressions() for name in NAME.findall(expression)}
    described = " ".join(panel.get("description", "") for panel in panels())
    unseen = {name for name in exported() if name not in asked and name not in described}
    assert unseen == {
        "tessera_extender_request_duration_seconds_sum",
        "tessera_extender_request_duration_seconds_count",
    }


def test_dashboard_is_laid_out() -> None:
    """Panels have different ids, do not overlap, and say their unit."""
    every = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    taken: set[tuple[int, int]] = set()
    for panel in every:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert all(panel["fieldConfig"]["defaults"]["unit"] for panel in panels())


def test_every_alert_has_its_runbook() -> None:
    """The link of an alert names a heading that is there; and every such heading has an alert."""
    text = (DEPLOY.parent / "docs/troubleshooting.md").read_text()
    headings = re.findall(r"^## (Tessera\w+)$", text, re.MULTILINE)
    alerts = [rule for rule in rules() if "alert" in rule]
    assert sorted(headings) == sorted(rule["alert"] for rule in alerts)
    for rule in alerts:
        assert rule["annotations"]["runbook_url"] == f"docs/troubleshooting.md#{rule['alert'].lower()}"
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_the_query_for_xids_is_tried() -> None:
    """A series of XIDs begins at 1, which `increase` alone does not see: promtool's cases have the panel's query."""
    cases = yaml.safe_load((DEPLOY.parent / "tests/deploy/rules.test.yaml").read_text())["tests"]
    tried = {asked["expr"] for case in cases for asked in case.get("promql_expr_test", [])}
    (shown,) = [each for each in expressions() if "tessera_gpu_xid_errors_total" in each]
    assert shown.replace("$node", ".*") in tried


def test_every_alert_is_tried() -> None:
    """promtool's cases, which e2e runs, let each alert fire."""
    cases = yaml.safe_load((DEPLOY.parent / "tests/deploy/rules.test.yaml").read_text())["tests"]
    fired = {
        tried["alertname"] for case in cases for tried in case.get("alert_rule_test", []) if tried.get("exp_alerts")
    }
    assert fired == {rule["alert"] for rule in rules() if "alert" in rule}
