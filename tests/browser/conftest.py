"""A real extender that serves the page, and a real Chromium that looks at it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.page import chromium, extender, write

NODES = 6


@dataclass
class View:
    """An open page, and what it complained about."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        """Return what an element says."""
        return self.page.locator(selector).inner_text()

    def run(self, code: str, *arguments: Any) -> Any:
        """Return what code of the page's own modules gives."""
        return self.page.evaluate(code, *arguments)

    def until(self, code: str, seconds: float = 10) -> None:
        """Wait until code is true; Playwright's own waiting evaluates strings, which the page forbids."""
        for _ in range(int(20 * seconds)):
            if self.page.evaluate(code):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"not in {seconds} s: {code}")

    def place(self, node: int, card: int) -> tuple[float, float]:
        """Return the middle of a card's cell, in the window."""
        code = """([node, card]) => {
          const plan = tessera.plan(), box = document.getElementById("canvas").getBoundingClientRect();
          const line = plan.lines.findLast((line) => line.first <= node);
          const x = line.xs[node - line.first] + (card + 0.5) * plan.cell - 1;
          return [box.x + x, box.y + line.y + plan.cell / 2];
        }"""
        x, y = self.page.evaluate(code, [node, card])
        return float(x), float(y)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Return a headless Chromium; there has to be one."""
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=chromium()) as found:
        yield found


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of an extender with six nodes of eight cards."""
    cluster = tmp_path_factory.mktemp("page") / "cluster.yaml"
    write(cluster, NODES)
    with extender(cluster) as url:
        yield url


@pytest.fixture
def view(browser: Browser, served: str) -> Iterator[View]:
    """Return the page in light colours; in the end it must have had nothing to complain about."""
    with opened(browser, served) as found:
        yield found
        assert found.complaints == []
        assert {address.split("/")[2] for address in found.asked} == {served.split("/")[2]}


@contextmanager
def opened(browser: Browser, url: str, **more: Any) -> Iterator[View]:
    """Return the page at a URL for as long as the block lasts, its cells drawn. `more`: of the browser's context."""
    context = browser.new_context(viewport={"width": 1200, "height": 800}, **more)
    view = View(context.new_page(), url)
    view.page.on("console", lambda said: view.complaints.append(said.text) if said.type == "error" else None)
    view.page.on("pageerror", lambda error: view.complaints.append(str(error)))
    view.page.on("request", lambda request: view.asked.append(request.url))
    view.page.goto(f"{url}/page")
    view.until('performance.getEntriesByName("cells").length > 0')
    yield view
    context.close()
