"""The webhooks' own certificate: made here, kept in a Secret, followed by a new one in time.

    nobody has one   --> whichever replica comes first writes it; the others read it
    a third is left  --> the leader writes the next one beside it, and the webhooks' configurations trust both
    a minute later   --> the leader puts the next one in its place, and every replica serves it once it has read it
    nobody trusts it --> the leader lets it vouch for itself: somebody else wrote the Secret, without its CA

So the API server trusts a certificate before anybody serves it, and the old one for as long as anybody may. Each is
self-signed and vouches for itself alone: there is no CA whose key could sign others.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from extender.cluster import Kept, Unreachable

log = logging.getLogger(__name__)

LIFETIME: Final = timedelta(days=90)
BACKDATED: Final = timedelta(hours=1)  # for clocks that are behind
ANNOUNCED: Final = timedelta(seconds=60)  # trusted for so long before it is served
FIRST_SECONDS: Final = 1.0
PAUSE_SECONDS: Final = 10.0  # below ANNOUNCED: every replica knows the next one before it is served


class Vault(Protocol):
    """Where the certificate is kept, and who has to trust it. What cannot be done now raises Unreachable."""

    async def read(self) -> Kept | None:
        """Return what is kept."""

    async def write(self, kept: Kept) -> bool:
        """Keep this over the version that was read; False: somebody else was first."""

    async def trust(self, bundle: bytes) -> None:
        """Have the API server trust these CAs."""


def make(names: tuple[str, ...], now: datetime) -> tuple[bytes, bytes]:
    """Return a new certificate for DNS names and IP addresses, and its key, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tessera-webhook")])
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    certificate = (
        builder.not_valid_before(now - BACKDATED)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM), private


def due(kept: Kept | None, names: tuple[str, ...], now: datetime) -> Kept | None:
    """Return what should be kept now instead of what is; None: it may stay."""
    certificate = _usable(kept.cert, kept.key) if kept else None
    if kept is None or certificate is None or certificate.not_valid_after_utc <= now:
        cert, key = make(names, now)
        return Kept(cert, key, cert, version=kept.version if kept else "")
    following = _usable(kept.next_cert, kept.next_key)
    own = [one for one in (certificate, following) if one is not None]
    if not all(_vouched(one, kept.bundle) for one in own):
        return replace(kept, bundle=b"".join(one.public_bytes(Encoding.PEM) for one in own))
    if following is not None:
        if now < following.not_valid_before_utc + BACKDATED + ANNOUNCED:
            return None
        # The bundle stays: a replica may serve the old one for a moment yet.
        return replace(kept, cert=kept.next_cert, key=kept.next_key, next_cert=b"", next_key=b"")
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if end - now >= (end - begin) / 3 and _names(certificate) == {_general(name) for name in names}:
        return None
    cert, key = make(names, now)
    return replace(kept, bundle=certificate.public_bytes(Encoding.PEM) + cert, next_cert=cert, next_key=key)


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names(certificate: x509.Certificate) -> set[x509.GeneralName]:
    try:
        return set(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except (x509.ExtensionNotFound, ValueError):
        return set()


def _usable(cert: bytes, key: bytes) -> x509.Certificate | None:
    """Return a certificate if its key is there and is its own."""
    try:
        certificate, private = x509.load_pem_x509_certificate(cert), load_pem_private_key(key, None)
    except (ValueError, TypeError):
        return None
    return certificate if private.public_key() == certificate.public_key() else None


def _vouched(certificate: x509.Certificate, bundle: bytes) -> bool:
    """Say whether a certificate is in the bundle, or one that signed it."""
    try:
        return any(certificate == one or _signed(certificate, one) for one in x509.load_pem_x509_certificates(bundle))
    except ValueError:
        return False


def _signed(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _utc() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True)
class SelfSigned:
    """Keeps `file`, certificate and key together, as the Secret has them. `may_act`: this replica leads."""

    vault: Vault
    names: tuple[str, ...]
    file: Path
    may_act: Callable[[], bool]
    now: Callable[[], datetime] = _utc
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    _in_force: bytes = b""
    _trusted: bytes = b""

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            try:
                await self.step()
            except Unreachable as error:
                log.warning("The webhooks' certificate is not looked after now: %s", error)
            except Exception:  # the only hand that does this work must not drop
                log.exception("The webhooks' certificate is not looked after now.")
            await asyncio.sleep(PAUSE_SECONDS if self.ready.is_set() else FIRST_SECONDS)

    async def step(self) -> None:
        """Read the Secret and put it into force; if this replica leads, see that it is trusted and followed in time.

        Raises
        ------
        Unreachable
        """
        kept = await self.vault.read()
        if kept is None:
            await self._write(due(None, self.names, self.now()))
            return
        self._serve(kept)
        if not self.may_act():
            return
        if _usable(kept.cert, kept.key):
            await self.vault.trust(kept.bundle)
            known, self._trusted = self._trusted == kept.bundle, kept.bundle
            if not known:
                return  # what follows is served at the earliest when the API server has known it for a while
        await self._write(due(kept, self.names, self.now()))

    async def _write(self, wanted: Kept | None) -> None:
        if wanted is None:
            return
        if await self.vault.write(wanted):  # if not, the next look shows whose came first
            log.info("What is kept of the webhooks' certificate is new.")
            if self.may_act():
                await self.vault.trust(wanted.bundle)
        kept = await self.vault.read()
        if kept is not None:
            self._serve(kept)

    def _serve(self, kept: Kept) -> None:
        """Put a certificate and its key into the file, at once."""
        both = kept.cert + kept.key
        if both == self._in_force or _usable(kept.cert, kept.key) is None:
            return
        new = self.file.with_suffix(".new")
        new.unlink(missing_ok=True)
        new.touch(mode=0o600)
        new.write_bytes(both)
        new.replace(self.file)
        self._in_force = both
        self.ready.set()
