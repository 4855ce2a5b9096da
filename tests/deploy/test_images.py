"""The Dockerfiles keep the rules, and the lock file gives each image what it needs and no more."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.test_deploy import DEPLOY

ROOT: Final = DEPLOY.parent
IMAGES: Final = ("extender", "agent")
BIN: Final = Path(sys.executable).parent
HEAVY: Final = {"numpy", "highspy", "fastapi", "uvicorn", "kubernetes", "pydantic", "msgspec", "matplotlib"}


def dockerfile(image: str) -> Path:
    """Return the path of an image's Dockerfile."""
    return DEPLOY / "images" / image / "Dockerfile"


@pytest.mark.parametrize("image", IMAGES)
def test_hadolint_has_nothing_to_say(image: str) -> None:
    """The linter's rules hold, all of them."""
    done = subprocess.run([BIN / "hadolint", dockerfile(image)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("image", IMAGES)
def test_images_are_small_and_nobody_is_root(image: str) -> None:
    """The last stage copies what was built, runs as a number that is no user's, and starts what the chart starts."""
    *_, last = re.split(r"^FROM ", dockerfile(image).read_text(), flags=re.MULTILINE)
    assert last.startswith("python:${PYTHON}-slim")
    assert re.findall(r"^(?:RUN|ADD) ", last, re.MULTILINE) == []
    assert re.findall(r"^COPY (.*)$", last, re.MULTILINE) == ["--from=build /opt/tessera /opt/tessera"]
    assert re.findall(r"^USER (.*)$", last, re.MULTILINE) == ["65532:65532"]
    assert re.findall(r"^ENTRYPOINT (.*)$", last, re.MULTILINE) == [f'["tessera-{image}"]']


def test_builds_use_the_locked_uv() -> None:
    """The images are made with the uv that made the lock file."""
    (version,) = re.findall(r"^UV_VERSION := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for image in IMAGES:
        assert f"uv=={version}\n" in dockerfile(image).read_text()


def licences(image: str) -> dict[str, str]:
    """Return the licence of every package that an image carries, as `make release` lists them."""
    command = [sys.executable, str(DEPLOY / "images/licences.py"), image]
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return {line.split("\t")[0]: line.split("\t")[2] for line in told.splitlines()}


def test_the_agents_image_is_light() -> None:
    """Three packages, and none that computes or serves."""
    assert set(licences("agent")) == {"nvidia-ml-py", "prometheus-client", "urllib3"}
    assert set(licences("extender")) >= HEAVY - {"matplotlib"}, "the same question finds what is there"


@pytest.mark.parametrize("image", IMAGES)
def test_every_licence_is_known(image: str) -> None:
    """No package is of a licence that forbids to pass it on with ours, and none says nothing."""
    for name, licence in licences(image).items():
        assert licence not in ("", "not told"), name
        assert not re.search(r"\bA?GPL|\bLGPL|Proprietary", licence), name


def test_the_builder_gets_what_the_wheel_is_made_of() -> None:
    """The context is a list of what is let in: no tests, no environment, no history."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    let_in = {line[1:] for line in lines if line.startswith("!")}
    packages = {"contract", "scoring", "extender", "nodeagent", "benchmarks"}
    assert "*" in lines
    assert let_in == packages | {"pyproject.toml", "uv.lock", "README.md", "LICENSE"}
