"""Keys in a token: they are made there, sign there, and never leave it."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Final, NoReturn

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.serialization import Encoding, KeySerializationEncryption, PrivateFormat

from sluice.core import StoreError
from sluice.pki.pkcs11.errors import missing_key
from sluice.pki.pkcs11.sessions import Session, Sessions
from sluice.pki.pkcs11.uri import TokenUri

TOKEN_ALGORITHMS: Final = ("ecdsa-p256", "ecdsa-p384")
ID_BYTES: Final = 16

# Object identifiers of the curves, encoded (RFC 5480, 2.1.1.1).
_CURVES: Final = {
    bytes.fromhex("06082a8648ce3d030107"): ec.SECP256R1(),
    bytes.fromhex("06052b81040022"): ec.SECP384R1(),
}
_PARAMETERS: Final = dict(zip(TOKEN_ALGORITHMS, _CURVES, strict=True))


Buffer = bytes | bytearray | memoryview


class TokenKey(ec.EllipticCurvePrivateKey):
    """A private key in a token, as the library's private key type. Its signatures are verified before use.

    Args:
        uri: the reference to the key.
        public: its public key.
        keys: the tokens that it signs in.
    """

    def __init__(self, uri: TokenUri, public: ec.EllipticCurvePublicKey, keys: TokenKeys) -> None:
        self.uri = uri
        self._public = public
        self._keys = keys

    def __repr__(self) -> str:
        return f"TokenKey({self.uri.object!r} in {self.uri.name})"

    def sign(self, data: Buffer, signature_algorithm: ec.EllipticCurveSignatureAlgorithm) -> bytes:
        """Have the token sign ``data``; returns ECDSA in DER."""
        algorithm = signature_algorithm.algorithm
        if not isinstance(signature_algorithm, ec.ECDSA) or not isinstance(algorithm, hashes.HashAlgorithm):
            raise UnsupportedAlgorithm("a key in a token signs with ECDSA")
        hasher = hashes.Hash(algorithm)
        hasher.update(data)
        raw = self._keys.sign(self.uri, hasher.finalize()[: self.key_size // 8])
        half = self.key_size // 8
        if len(raw) != 2 * half:
            raise StoreError(f"{self.uri.name} made a signature of {len(raw)} bytes", "its module does not fit")
        signature = utils.encode_dss_signature(int.from_bytes(raw[:half], "big"), int.from_bytes(raw[half:], "big"))
        try:
            self._public.verify(signature, data, signature_algorithm)
        except InvalidSignature:
            raise StoreError(
                f"a signature of {self.uri.name} does not verify", "the key was exchanged, or the token is faulty"
            ) from None
        return signature

    def public_key(self) -> ec.EllipticCurvePublicKey:
        """Its public key."""
        return self._public

    @property
    def curve(self) -> ec.EllipticCurve:
        """The curve."""
        return self._public.curve

    @property
    def key_size(self) -> int:
        """In bits."""
        return self._public.curve.key_size

    def exchange(self, algorithm: ec.ECDH, peer_public_key: ec.EllipticCurvePublicKey) -> NoReturn:  # noqa: ARG002  the library's interface
        """Not what a signing key is for."""
        raise UnsupportedAlgorithm("a key in a token signs, and nothing else")

    def private_numbers(self) -> NoReturn:
        """Refused."""
        self._refuse()

    def private_bytes(
        self,
        encoding: Encoding,  # noqa: ARG002  the library's interface
        format: PrivateFormat,  # noqa: A002, ARG002  likewise
        encryption_algorithm: KeySerializationEncryption,  # noqa: ARG002  likewise
    ) -> NoReturn:
        """Refused."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise StoreError(f"the key {self.uri.object!r} does not leave {self.uri.name}", "use it there")

    def __copy__(self) -> TokenKey:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> TokenKey:
        return self


class TokenKeys:
    """The keys in tokens, as this process sees them."""

    def __init__(self, sessions: Sessions | None = None) -> None:
        self._sessions = sessions or Sessions()

    def generate(self, place: TokenUri, algorithm: str, label: str) -> TokenKey:
        """Make a key in a token that nobody can extract.

        Raises:
            StoreError: the token cannot, or it made a key that could be copied (which was then removed).
        """
        if algorithm not in _PARAMETERS:
            raise StoreError(
                f"a key in a token cannot be {algorithm}", f"set pki.key_algorithm to {' or '.join(TOKEN_ALGORITHMS)}"
            )
        if place.object or place.id:
            raise StoreError("this reference names a key, and a new one is to be made", "leave out `object` and `id`")
        uri = place.key(label, os.urandom(ID_BYTES))
        self._sessions.run(uri, lambda library, session: _generate(library, session, uri, _PARAMETERS[algorithm]))
        try:
            return self.load(uri)
        except StoreError:
            with contextlib.suppress(StoreError):
                self.destroy(uri)
            raise

    def load(self, uri: TokenUri) -> TokenKey:
        """The key that a reference names; :class:`StoreError` when it is not there, or not protected as it must be."""
        if not uri.id:
            raise StoreError("this reference names a token and no key in it", "is it one that Sluice has written?")
        _, public = self._sessions.run(uri, lambda library, session: _find(library, session, uri))
        return TokenKey(uri, public, self)

    def sign(self, uri: TokenUri, digest: bytes) -> bytes:
        """The token's signature of ``digest``: r and s, one after the other."""

        def act(library: Any, session: Session) -> bytes:  # noqa: ANN401
            private, _ = _find(library, session, uri)
            return bytes(private.sign(digest, mechanism=library.Mechanism.ECDSA))

        return self._sessions.run(uri, act)

    def destroy(self, uri: TokenUri) -> None:
        """Remove a key from its token; does nothing when it is missing."""

        def act(library: Any, session: Session) -> None:  # noqa: ANN401
            session.found.pop(uri, None)
            for kind in (library.ObjectClass.PRIVATE_KEY, library.ObjectClass.PUBLIC_KEY):
                for each in _objects(library, session, uri, kind):
                    each.destroy()

        self._sessions.run(uri, act)


TOKEN_KEYS: Final = TokenKeys()
"""The keys of this process, which shares sessions and refused PINs."""


def _generate(library: Any, session: Session, uri: TokenUri, parameters: bytes) -> None:  # noqa: ANN401
    attribute, can = library.Attribute, library.MechanismFlag
    domain = session.handle.create_domain_parameters(library.KeyType.EC, {attribute.EC_PARAMS: parameters}, local=True)
    domain.generate_keypair(
        id=uri.id,
        label=uri.object,
        store=True,
        capabilities=can.SIGN | can.VERIFY,
        private_template={attribute.PRIVATE: True, attribute.SENSITIVE: True, attribute.EXTRACTABLE: False},
    )


def _find(library: Any, session: Session, uri: TokenUri) -> tuple[Any, ec.EllipticCurvePublicKey]:  # noqa: ANN401
    """The private key's object and the public key."""
    if (known := session.found.get(uri)) is not None:
        return known[0], known[1]
    private = _only(library, session, uri, library.ObjectClass.PRIVATE_KEY)
    public = _only(library, session, uri, library.ObjectClass.PUBLIC_KEY)
    attribute = library.Attribute
    if private[attribute.KEY_TYPE] != library.KeyType.EC:
        raise _wrong_type(uri)
    if not private[attribute.SENSITIVE] or private[attribute.EXTRACTABLE]:
        raise StoreError(
            f"the key {uri.object!r} can be copied out of {uri.name}", "make an authority whose key is made in a token"
        )
    found = session.found[uri] = (
        private,
        _public_key(uri, bytes(public[attribute.EC_PARAMS]), bytes(public[attribute.EC_POINT])),
    )
    return found


def _only(library: Any, session: Session, uri: TokenUri, kind: object) -> Any:  # noqa: ANN401
    found = _objects(library, session, uri, kind)
    if not found:
        raise missing_key(uri)
    if len(found) > 1:
        raise StoreError(f"{uri.name} has {len(found)} keys {uri.object!r} with id {uri.id.hex()}", "remove the others")
    return found[0]


def _objects(library: Any, session: Session, uri: TokenUri, kind: object) -> list[Any]:  # noqa: ANN401
    wanted = {library.Attribute.CLASS: kind, library.Attribute.ID: uri.id}
    if uri.object:
        wanted[library.Attribute.LABEL] = uri.object
    return list(session.handle.get_objects(wanted))


def _public_key(uri: TokenUri, parameters: bytes, point: bytes) -> ec.EllipticCurvePublicKey:
    curve = _CURVES.get(parameters)
    if curve is None:
        raise _wrong_type(uri)
    plain = 1 + 2 * (curve.key_size // 8)
    try:
        # An OCTET STRING in DER around the point (PKCS#11 2.40, section 2.3.3); some modules omit it.
        return ec.EllipticCurvePublicKey.from_encoded_point(curve, point if len(point) == plain else point[-plain:])
    except ValueError:
        raise StoreError(
            f"{uri.name} shows no readable public key for {uri.object!r}", "its module does not fit"
        ) from None


def _wrong_type(uri: TokenUri) -> StoreError:
    return StoreError(
        f"the key {uri.object!r} in {uri.name} is of another type", f"it must be {' or '.join(TOKEN_ALGORITHMS)}"
    )
