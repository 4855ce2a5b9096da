"""The page in a real browser: what is drawn, said, filtered and reached by keyboard, and that it stays true."""

import json
import re
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from benchmarks.page import extender, write
from tests.browser.conftest import NODES, View, opened

SUMS = re.compile(r"(\d+) nodes, (\d+) cards; memory [\d.]+ % of [\d.]+ .iB, compute [\d.]+ % promised")


def sums(view: View) -> tuple[int, int]:
    """Return how many nodes and cards are shown."""
    found = SUMS.fullmatch(view.text("#sums"))
    assert found is not None, view.text("#sums")
    return int(found[1]), int(found[2])


def colours(view: View) -> int:
    """Return how many colours the canvas has."""
    code = """() => {
      const canvas = document.getElementById("canvas");
      const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return new Set(new Uint32Array(data.buffer)).size;
    }"""
    return int(view.run(code))


def post(url: str, verb: str, body: object) -> object:
    """Ask the extender, as kube-scheduler does."""
    asked = urllib.request.Request(f"{url}/{verb}", json.dumps(body).encode())
    with urllib.request.urlopen(asked) as reply:
        return json.loads(reply.read())


def test_every_card_is_drawn(view: View) -> None:
    """With the ground, empty cells, and a colour for each tenant's share."""
    assert sums(view) == (NODES, 8 * NODES)
    assert colours(view) >= 4
    view.page.emulate_media(reduced_motion="reduce")


def test_a_full_half_is_filled_to_its_height(view: View) -> None:
    """Memory is the left half, compute the right: a card that promises half of one and all of the other."""
    code = """() => {
      const node = tessera.nodes()[0], card = [...node[2][0]];
      card[2] = 1000; card[3] = 1000; card[4] = ""; card[8] = [["team", "pod", 500, 1000]];
      tessera.take({nodes: [[node[0], "", [card, ...node[2].slice(1)]]]});
    }"""
    view.run(code)
    view.run(
        "() => new Promise((go) => requestAnimationFrame(() => go()))"
    )  # after the drawing, which was asked first
    pixels = """() => {
      const cell = tessera.plan().cell, size = cell - 1, half = size >> 1;
      const {data} = document.getElementById("canvas").getContext("2d").getImageData(0, 0, size, size);
      const all = new Uint32Array(data.buffer), filled = all[size * size - 1];
      const column = (x) => [...Array(size).keys()].filter((y) => all[y * size + x] === filled);
      const high = (x) => column(x).length / size;
      return [high(0), high(half - 1), high(half), high(size - 1)];
    }"""
    left, left_end, right, right_end = view.run(pixels)
    assert abs(left - 0.5) < 0.05
    assert left == left_end
    assert right == right_end == 1


def test_pointing_at_a_cell_tells_who_and_how_much(view: View) -> None:
    """Node, card, model, memory and compute, and each pod with its share."""
    code = "tessera.nodes().findIndex((node) => node[2][0][8].length > 0)"
    node = view.run(code)
    view.page.mouse.move(*view.place(node, 0))
    view.until('document.getElementById("card").innerText.includes("card 0")')
    said = view.text("#card")
    name, pod = view.run(f"[tessera.nodes()[{node}][0], tessera.nodes()[{node}][2][0][8][0].slice(0, 2).join('/')]")
    assert name in said
    assert f"{pod}: " in said
    assert re.search(r"Memory: [\d.]+ .iB of [\d.]+ GiB promised", said)
    assert re.search(r"Compute: [\d.]+ % of 100 % promised", said)


def test_cards_are_reached_by_keyboard(view: View) -> None:
    """Tab comes to the map, arrows go from card to card and over to the next node, plus makes cells larger."""
    for _ in range(20):
        view.page.keyboard.press("Tab")
        if view.run("document.activeElement.id") == "canvas":
            break
    assert view.run("document.activeElement.id") == "canvas"
    view.page.keyboard.press("ArrowRight")
    assert view.run("tessera.here()") == [0, 0]
    for _ in range(8):
        view.page.keyboard.press("ArrowRight")
    assert view.run("tessera.here()") == [1, 0]
    view.page.keyboard.press("ArrowLeft")
    assert view.run("tessera.here()") == [0, 7]
    assert "card 7" in view.text("#card")
    view.page.keyboard.press("End")
    assert view.run("tessera.here()[0]") == NODES - 1
    assert f"{view.run(f'tessera.nodes()[{NODES - 1}][0]')}, card 0" in view.text("#card")
    view.page.keyboard.press("Home")
    assert view.run("tessera.here()") == [0, 0]
    view.page.keyboard.press("0")
    cell = view.run("tessera.plan().cell")
    view.page.keyboard.press("-")
    assert view.run("tessera.plan().cell") < cell


@pytest.mark.parametrize("key", ["Home", "End", "ArrowRight", "PageDown"])
def test_no_key_breaks_an_empty_map(view: View, key: str) -> None:
    """When a filter that let nothing through is lifted, everything is there again."""
    view.page.get_by_label("Node").fill("nobody")
    view.page.locator("#canvas").press(key)
    assert view.run("tessera.here()") is None
    view.page.get_by_label("Node").fill("")
    assert sums(view) == (NODES, 8 * NODES)
    assert view.run("tessera.plan().lines.length") > 0


def test_filters(view: View) -> None:
    """By a part of the node's name, by model, by tenant; nothing that fits is nothing shown."""
    view.page.get_by_label("Node").fill("gpu-00003")
    assert sums(view) == (1, 8)
    view.page.get_by_label("Node").fill("nobody")
    assert sums(view) == (0, 0)
    view.page.get_by_label("Node").fill("")
    view.page.get_by_role("combobox", name="Model").select_option("NVIDIA A100-SXM4-80GB")
    assert sums(view) == (NODES, 8 * NODES)
    tenant = view.run('[...document.getElementById("tenant").options][1].value')
    view.page.get_by_role("combobox", name="Tenant").select_option(tenant)
    with_it = view.run("(t) => tessera.nodes().every((n) => n[2].some((c) => c[8].some((s) => s[0] === t)))", tenant)
    assert with_it
    view.page.get_by_role("button", name=re.compile(f"^{tenant} ")).click()
    assert sums(view) == (NODES, 8 * NODES)


def test_the_table_tells_the_same(view: View) -> None:
    """For who cannot see the map: a table with heads, a caption and every node."""
    view.page.get_by_role("button", name="Table").click()
    table = view.page.get_by_role("table", name=f"{NODES} nodes with cards")
    assert table.get_by_role("columnheader").count() == 7
    assert table.get_by_role("rowheader").count() == NODES
    assert not view.page.locator("#canvas").is_visible()
    view.page.get_by_role("button", name="Table").click()
    assert view.page.locator("#canvas").is_visible()
    assert colours(view) >= 4


def test_pods_that_wait_stand_there_with_their_reason(view: View) -> None:
    """What they ask, and why no node takes them."""
    assert view.text("#pending-head") == "Waiting: 5 pods"
    first = view.page.locator("#pending li").first.inner_text()
    assert "of memory on 1 card" in first
    assert f"None of {NODES} nodes with cards takes it now." in first


def test_the_chart_has_its_numbers_in_words(view: View) -> None:
    """Memory, compute and fragmentation."""
    view.until('document.querySelectorAll("polyline").length === 3')
    view.until('!document.getElementById("key").innerText.includes("memory promised: 0 %")')
    assert re.search(r"free compute that is fragmented: [\d.]+ %", view.text("#key"))


def test_names_are_text(view: View) -> None:
    """Whatever somebody calls a pod, it makes no element and runs nothing."""
    code = """(evil) => {
      tessera.take({
        nodes: [["n<b>", "", [["GPU-x", evil, 100, 1000, "", null, null, 0, [[evil, evil, 50, 500]]]]]],
        pending: [{namespace: evil, pod: evil, asks: evil, why: evil}], waiting: 1,
      });
      return [document.querySelectorAll("img").length, document.getElementById("pending").innerText];
    }"""
    images, text = view.run(code, "<img src=x onerror=alert(1)>")
    assert images == 0
    assert "<img src=x" in text


def test_it_is_dark_where_the_system_is(browser: Browser, served: str) -> None:
    """Ground and cells alike, also when that changes under way."""
    ground = 'getComputedStyle(document.body).backgroundColor + document.getElementById("canvas").toDataURL().length'
    with opened(browser, served, color_scheme="dark") as view:
        dark = view.run(ground)
        assert dark.startswith("rgb(16, 18, 22)")
        view.page.emulate_media(color_scheme="light")
        view.until('getComputedStyle(document.body).backgroundColor === "rgb(255, 255, 255)"')
        view.until("""[...document.getElementById("canvas").getContext("2d")
          .getImageData(document.getElementById("canvas").width - 1, 0, 1, 1).data].every((part) => part === 255)""")


def test_a_bind_is_seen(browser: Browser, tmp_path: Path) -> None:
    """What changed comes by itself, and only what changed."""
    write(tmp_path / "cluster.yaml", 2)
    with extender(tmp_path / "cluster.yaml") as url, opened(browser, url) as view:
        meta = {"name": "new", "namespace": "fresh", "uid": "u", "annotations": {"tessera.gpu/memory": "1Gi"}}
        pod = {"metadata": meta, "spec": {"containers": [{"name": "main"}]}}
        names = view.run("tessera.nodes().map((node) => node[0])")
        passed = post(url, "filter", {"Pod": pod, "NodeNames": names})
        assert isinstance(passed, dict)
        where = {"PodName": "new", "PodNamespace": "fresh", "PodUID": "u", "Node": passed["NodeNames"][0]}
        assert post(url, "bind", where) == {"Error": ""}
        view.until('tessera.nodes().some((n) => n[2].some((c) => c[8].some((s) => s[0] === "fresh")))')
        assert view.run('[...document.getElementById("tenant").options].some((o) => o.value === "fresh")')
        assert any("since=" in address and not address.endswith("since=") for address in view.asked)


def test_a_server_that_is_gone_is_told(browser: Browser, tmp_path: Path) -> None:
    """When nothing comes any more the page says since when, and goes on showing what it knows."""
    write(tmp_path / "cluster.yaml", 2)
    server = ExitStack()
    with opened(browser, server.enter_context(extender(tmp_path / "cluster.yaml"))) as view:
        server.close()
        view.until('document.getElementById("trouble").innerText.includes("No answer for")')
        assert sums(view) == (2, 16)
