"""The way to the API server: kubectl itself, one `get --raw` a question. The only file here that does I/O."""

import os
import subprocess
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode

import msgspec

from contract.names import GROUP, PLURAL, VERSION

T = TypeVar("T")
SECONDS: Final = 30.0
PAGE: Final = 5000  # objects in one answer, so that a cluster of 5,000 nodes is one
GPUNODES: Final = f"/apis/{GROUP}/{VERSION}/{PLURAL}"
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
UNFINISHED: Final = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}


class Unanswered(Exception):
    """The question was not answered; the message is the reason, in one sentence."""


class _Meta(msgspec.Struct, rename={"more": "continue"}):
    more: str = ""


class _Page(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    items: list[msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True)
class Api:
    """Questions to one cluster. `flags`: what kubectl was told about where it is; `extender`: where ours is.

    `account`: the file with a service account's namespace, which is there in a pod alone.
    """

    kubectl: str = "kubectl"
    flags: tuple[str, ...] = ()
    extender: str = ""
    _run: Callable[..., "subprocess.CompletedProcess[bytes]"] = field(default=subprocess.run, repr=False)
    account: Path = ACCOUNT

    def get(self, path: str, **query: str) -> bytes:
        """Return the body of an answer.

        Raises
        ------
        Unanswered
        """
        asked = f"{path}?{urlencode(query)}" if query else path
        return self._kubectl("get", "--raw", asked)

    def object(self, path: str, **query: str) -> dict[str, Any]:
        """Return one object as JSON values.

        Raises
        ------
        Unanswered
        """
        return _decoded(dict[str, Any], self.get(path, **query), path)

    def list(self, kind: type[T], path: str, **query: str) -> list[T]:
        """Return all objects of a list, page by page.

        Raises
        ------
        Unanswered
        """
        found: list[T] = []
        while True:
            page = _decoded(_Page, self.get(path, limit=str(PAGE), **query), path)
            found += [_decoded(kind, bytes(item), path) for item in page.items or ()]
            if not page.metadata.more:
                return found
            query["continue"] = page.metadata.more

    def namespace(self) -> str:
        """Return kubectl's own choice: the namespace of the context, else the service account's, else `default`."""
        try:
            said = self._kubectl("config", "view", "--minify", "-o", "jsonpath={..namespace}").decode().strip()
        except Unanswered:  # there is no context; if more is wrong, the next question tells
            said = ""
        return said or (self.account.read_text().strip() if self.account.is_file() else "default")

    @property
    def extender_namespace(self) -> str:
        """The namespace of the extender's Service; "" if the extender is at a URL."""
        return "" if self._at_url else self.extender.partition("/")[0]

    @property
    def _at_url(self) -> bool:
        return self.extender.startswith(("http://", "https://"))

    def ask_extender(self, path: str, **query: str) -> bytes:
        """Return what the extender answers on its port for probes: through the API server, or at a URL.

        Raises
        ------
        Unanswered
        """
        if self._at_url:
            return _fetch(f"{self.extender.rstrip('/')}{path}?{urlencode(query)}")
        namespace, _, service = self.extender.partition("/")
        return self.get(f"/api/v1/namespaces/{namespace}/services/{service}/proxy{path}", **query)

    def _kubectl(self, *arguments: str) -> bytes:
        try:
            done = self._run(
                [self.kubectl, *self.flags, *arguments], capture_output=True, timeout=SECONDS, check=False
            )
        except FileNotFoundError as error:
            raise Unanswered(f"{self.kubectl} is not there; set KUBECTL to kubectl's path.") from error
        except subprocess.TimeoutExpired as error:
            raise Unanswered(f"The API server did not answer within {SECONDS:g} s.") from error
        if done.returncode:
            raise Unanswered(_sentence(done.stderr.decode(errors="replace")))
        return done.stdout


def at_once(questions: Sequence[Callable[[], T]]) -> list[T]:
    """Return the answers to several questions, asked at the same time; the first failure is raised."""
    with ThreadPoolExecutor(len(questions)) as threads:
        return list(threads.map(lambda ask: ask(), questions))


def kubectl_of(flags: Sequence[str], extender: str) -> Api:
    """Return the way to the cluster that kubectl's own flags name."""
    return Api(os.environ.get("KUBECTL", "kubectl"), tuple(flags), extender)


def _fetch(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as reply:  # noqa: S310  # its scheme is looked at above
            return bytes(reply.read())
    except HTTPError as error:
        raise Unanswered(_sentence(error.read().decode(errors="replace"))) from error
    except (URLError, OSError) as error:
        raise Unanswered(f"{url} does not answer: {error}.") from error


def _sentence(text: str) -> str:
    """Return the last line of what somebody said, without kubectl's prefix."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    last = lines[-1] if lines else "kubectl failed without a word."
    return last.removeprefix("Error from server ").removeprefix("error: ")[:400]


def _decoded(kind: type[T], body: bytes, path: str) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise Unanswered(f"The answer to {path} cannot be read: {error}.") from error
