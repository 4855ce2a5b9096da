"""The certificate's life: who writes it, that it is trusted before it is served, and that nobody is left behind."""

import ssl
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.cluster import Kept, Unreachable
from extender.controllers.certificates import ANNOUNCED, LIFETIME, PAUSE_SECONDS, SelfSigned, due, make

NAMES = ("tessera-webhook.tessera-system.svc", "127.0.0.1")
START = datetime(2026, 1, 1, tzinfo=UTC)
pytestmark = pytest.mark.anyio


@dataclass
class Cluster:
    """A Secret and the CAs that the API server trusts, with a clock.

    `away`: it does not answer. `early`: so many reads come before the Secret was written.
    """

    now: datetime = START
    kept: Kept | None = None
    trusted: bytes = b""
    away: bool = False
    early: int = 0
    version: int = 0

    async def read(self) -> Kept | None:
        """Return what is kept."""
        self._answer()
        if self.early:
            self.early -= 1
            return None
        return self.kept

    async def write(self, kept: Kept) -> bool:
        """Keep this, unless it was made from an older version."""
        self._answer()
        if kept.version != (self.kept.version if self.kept else ""):
            return False
        self.version += 1
        self.kept = replace(kept, version=str(self.version))
        return True

    async def trust(self, bundle: bytes) -> None:
        """Trust these CAs."""
        self._answer()
        self.trusted = bundle

    def _answer(self) -> None:
        if self.away:
            raise Unreachable("away")


@dataclass
class Replica:
    """One of several extenders."""

    cluster: Cluster
    folder: Path
    leads: bool = False
    names: tuple[str, ...] = NAMES
    part: SelfSigned = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        file = self.folder / "webhook.pem"
        self.part = SelfSigned(self.cluster, self.names, file, lambda: self.leads, lambda: self.cluster.now)

    def served(self) -> bytes:
        """Return the certificate that it serves, b"" before there is one."""
        file = self.part.file
        return file.read_bytes().split(b"-----BEGIN PRIVATE")[0] if file.exists() else b""


def test_a_certificate_is_what_a_server_needs(tmp_path: Path) -> None:
    """Python's TLS loads it with its key, and it has the names, for servers alone."""
    cert, key = make(NAMES, START)
    (tmp_path / "pem").write_bytes(cert + key)
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(tmp_path / "pem", tmp_path / "pem")
    names = x509.load_pem_x509_certificate(cert).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [NAMES[0]]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == [NAMES[1]]


def test_due() -> None:
    """Nothing, until a third of its life is left or a name is another; then the next one, and a minute later it."""
    first = due(None, NAMES, START)
    assert first is not None
    assert first.bundle == first.cert
    assert due(first, NAMES, START + LIFETIME / 2) is None
    announced = due(first, NAMES, START + LIFETIME * 0.7)
    assert announced is not None
    assert (announced.cert, announced.bundle) == (first.cert, first.cert + announced.next_cert)
    assert due(announced, NAMES, START + LIFETIME * 0.7) is None
    promoted = due(announced, NAMES, START + LIFETIME * 0.7 + ANNOUNCED)
    assert promoted == replace(
        announced, cert=announced.next_cert, key=announced.next_key, next_cert=b"", next_key=b""
    )
    other = due(first, ("other.svc",), START)
    assert other is not None
    assert other.next_cert


@pytest.mark.parametrize("wrong", [{"cert": b"x"}, {"key": b""}, {"key": make(NAMES, START)[1]}])
def test_what_cannot_be_used_is_made_anew(wrong: dict[str, bytes]) -> None:
    """No PEM, no key, another's key, or its time is over."""
    first = due(None, NAMES, START)
    assert first is not None
    for kept, now in ((replace(first, **wrong, version="3"), START), (first, START + LIFETIME)):
        anew = due(kept, NAMES, now)
        assert anew is not None
        assert (anew.bundle, anew.version, anew.next_cert) == (anew.cert, kept.version, b"")
        assert anew.cert != first.cert


@pytest.mark.parametrize(
    "bundle",
    [b"", b"x", make(NAMES, START)[0], trustme.CA().cert_pem.bytes()],
    ids=["none", "no PEM", "another's", "another CA"],
)
def test_a_bundle_without_its_certificate_is_due(bundle: bytes) -> None:
    """It gets the certificate, and the next one if there is one."""
    first = due(None, NAMES, START)
    assert first is not None
    announced = due(first, NAMES, START + LIFETIME * 0.7)
    assert announced is not None
    assert due(replace(first, bundle=bundle), NAMES, START) == first
    for known in (bundle, first.cert, announced.next_cert):
        assert due(replace(announced, bundle=known), NAMES, START + LIFETIME * 0.8) == announced


def test_a_bundle_with_the_ca_of_its_certificate_stays() -> None:
    """Somebody else's certificate, as `kubectl create secret tls` keeps it, here without a newline at its end."""
    ca = trustme.CA()
    given = ca.issue_cert(*NAMES)
    cert = given.cert_chain_pems[0].bytes()
    kept = Kept(cert.rstrip(), given.private_key_pem.bytes(), ca.cert_pem.bytes(), version="1")
    assert due(kept, NAMES, START) is None
    alone = replace(kept, bundle=cert)
    assert due(replace(kept, bundle=b""), NAMES, START) == alone
    assert due(alone, NAMES, START) is None
    following = due(kept, ("other.svc",), START)
    assert following is not None
    assert following.bundle == cert + following.next_cert


async def test_a_secret_without_a_ca_is_healed(tmp_path: Path) -> None:
    """By the leader, at its second look at the latest."""
    first = due(None, NAMES, START)
    assert first is not None
    for bundle in (b"", make(NAMES, START)[0]):
        cluster = Cluster(kept=replace(first, bundle=bundle, version="1"), version=1)
        leader = Replica(cluster, tmp_path / "a", leads=True)
        await leader.part.step()
        await leader.part.step()
        assert leader.served() == cluster.trusted == first.cert
        assert cluster.kept == replace(first, version="2")


async def test_whichever_replica_comes_first_writes_it(tmp_path: Path) -> None:
    """The others serve the same, and the leader has it trusted."""
    cluster = Cluster()
    follower, leader = Replica(cluster, tmp_path / "a"), Replica(cluster, tmp_path / "b", leads=True)
    await follower.part.step()
    assert cluster.kept is not None
    assert (follower.served(), cluster.trusted) == (cluster.kept.cert, b"")
    await leader.part.step()
    assert leader.served() == follower.served() == cluster.trusted
    assert follower.part.file.stat().st_mode & 0o777 == 0o600


async def test_a_lost_race_is_read_again(tmp_path: Path) -> None:
    """Two replicas find no Secret; the one whose write is refused serves the other's."""
    cluster = Cluster()
    one, other = Replica(cluster, tmp_path / "a"), Replica(cluster, tmp_path / "b")
    await one.part.step()
    cluster.early = 1
    await other.part.step()
    assert other.served() == one.served()


async def test_what_was_trusted_only_now_is_not_served_yet(tmp_path: Path) -> None:
    """A new leader finds a certificate whose minute is long over, and an API server that nobody told of it."""
    first = due(None, NAMES, START)
    announced = due(first, NAMES, START + LIFETIME * 0.7)
    assert announced is not None
    cluster = Cluster(START + LIFETIME * 0.8, replace(announced, version="1"), version=1)
    leader = Replica(cluster, tmp_path / "a", leads=True)
    await leader.part.step()
    assert (leader.served(), cluster.trusted) == (announced.cert, announced.bundle)
    await leader.part.step()
    assert leader.served() == announced.next_cert


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["step a", "step b", "lead a", "lead b", "away", "back", "days", "hour"]), max_size=60)
)
async def test_nobody_serves_what_is_not_trusted(tmp_path_factory: pytest.TempPathFactory, events: list[str]) -> None:
    """Whatever happens in whatever order, from the first certificate on and as long as replicas look in time."""
    folder = tmp_path_factory.mktemp("replicas")
    cluster = Cluster()
    replicas = {name: Replica(cluster, folder / name, leads=name == "a") for name in "ab"}

    async def look(name: str) -> None:
        try:
            await replicas[name].part.step()
        except Unreachable:
            assert cluster.away

    for name in "ab":
        await look(name)
    await look("a")
    for event in events:
        what, _, name = event.partition(" ")
        if what == "lead":
            for other, replica in replicas.items():
                replica.leads = other == name
        elif what == "step":
            await look(name)
        elif what in ("away", "back"):
            cluster.away = what == "away"
        else:
            cluster.now += timedelta(days=3) if what == "days" else timedelta(seconds=PAUSE_SECONDS)
            for other in "ab":
                await look(other)
        expired = any(
            x509.load_pem_x509_certificate(r.served()).not_valid_after_utc <= cluster.now for r in replicas.values()
        )
        if not expired:
            assert all(replica.served() in cluster.trusted for replica in replicas.values())
    assert all(replica.served() for replica in replicas.values())
