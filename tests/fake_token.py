"""An in-memory PKCS #11 token with the interface of python-pkcs11. Tests can inject its faults."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils

_CURVES = {bytes.fromhex("06082a8648ce3d030107"): ec.SECP256R1(), bytes.fromhex("06052b81040022"): ec.SECP384R1()}
_HASHES = {32: hashes.SHA256(), 48: hashes.SHA384()}


class PKCS11Error(RuntimeError):
    """Base class of the library's errors. Callers distinguish them by their names."""


def error(name: str) -> PKCS11Error:
    """Return an instance of the library's error with this name."""
    made: PKCS11Error = type(name, (PKCS11Error,), {})()
    return made


class Attribute(enum.Enum):
    """The attributes that Sluice uses."""

    CLASS = enum.auto()
    ID = enum.auto()
    LABEL = enum.auto()
    KEY_TYPE = enum.auto()
    PRIVATE = enum.auto()
    SENSITIVE = enum.auto()
    EXTRACTABLE = enum.auto()
    EC_PARAMS = enum.auto()
    EC_POINT = enum.auto()


class ObjectClass(enum.Enum):
    """Classes of objects."""

    PRIVATE_KEY = enum.auto()
    PUBLIC_KEY = enum.auto()


class KeyType(enum.Enum):
    """Types of keys."""

    EC = enum.auto()
    RSA = enum.auto()


class Mechanism(enum.Enum):
    """Signature mechanisms."""

    ECDSA = enum.auto()


class MechanismFlag(enum.Flag):
    """The purposes of a key."""

    SIGN = enum.auto()
    VERIFY = enum.auto()


class Stored:
    """An object in the token."""

    def __init__(self, token: FakeToken, key: ec.EllipticCurvePrivateKey, attributes: dict[Attribute, Any]) -> None:
        self._token, self._key, self._attributes = token, key, attributes

    def __getitem__(self, name: Attribute) -> Any:
        return self._attributes[name]

    def fits(self, wanted: dict[Attribute, Any]) -> bool:
        """Whether the object has all of these attributes."""
        return all(self._attributes.get(name) == value for name, value in wanted.items())

    def sign(self, digest: bytes, mechanism: Mechanism) -> bytes:
        """Sign a digest; returns r and s, concatenated."""
        assert mechanism is Mechanism.ECDSA
        self._token.answer()
        if self not in self._token.objects:
            raise error("ObjectHandleInvalid")
        key = ec.generate_private_key(self._key.curve) if self._token.faulty else self._key
        der = key.sign(digest, ec.ECDSA(utils.Prehashed(_HASHES[len(digest)])))
        size = self._key.key_size // 8
        return b"".join(each.to_bytes(size, "big") for each in utils.decode_dss_signature(der))

    def destroy(self) -> None:
        """Remove the object from the token."""
        self._token.answer()
        self._token.objects.remove(self)


class Domain:
    """Domain parameters, from which key pairs are generated."""

    def __init__(self, token: FakeToken, parameters: bytes) -> None:
        self._token, self._parameters = token, parameters

    def generate_keypair(
        self,
        *,
        id: bytes,  # noqa: A002  the library's name
        label: str,
        store: bool,
        capabilities: MechanismFlag,
        private_template: dict[Attribute, Any],
    ) -> None:
        """Generate a key pair and store both objects."""
        assert store
        assert capabilities == MechanismFlag.SIGN | MechanismFlag.VERIFY
        self._token.answer()
        key = ec.generate_private_key(_CURVES[self._parameters])
        self._token.put(key, id, label, self._parameters, private_template | self._token.attribute_overrides)


class FakeSession:
    """A session that is logged in."""

    def __init__(self, token: FakeToken) -> None:
        self._token = token

    def create_domain_parameters(self, kind: KeyType, attributes: dict[Attribute, Any], *, local: bool) -> Domain:
        """Return the domain parameters of a curve."""
        assert (kind, local) == (KeyType.EC, True)
        return Domain(self._token, attributes[Attribute.EC_PARAMS])

    def get_objects(self, wanted: dict[Attribute, Any]) -> Iterator[Stored]:
        """Return the objects with these attributes."""
        self._token.answer()
        return iter([each for each in self._token.objects if each.fits(wanted)])

    def close(self) -> None:
        """Close the session."""
        self._token.closed += 1


class FakeToken:
    """A token with its objects and the faults that it injects.

    Attributes:
        errors: names of the errors that the next calls raise.
        attribute_overrides: attributes that private keys get instead of the requested ones.
        faulty: whether its signatures are wrong.
    """

    def __init__(self, label: str = "hsm", pin: str = "1234", serial: bytes = b"0001") -> None:
        self.label, self.pin, self.serial = label, pin, serial
        self.manufacturer_id, self.model, self.flags = "Sluice", "fake", 0
        self.objects: list[Stored] = []
        self.pins_tried: list[str | None] = []
        self.errors: list[str] = []
        self.attribute_overrides: dict[Attribute, Any] = {}
        self.faulty = self.logged_in = False
        self.closed = 0

    def get_token(self) -> FakeToken:
        """Return the token; the fake is its own slot."""
        return self

    def answer(self) -> None:
        """Raise the next of :attr:`errors`, if there is one."""
        if self.errors and (name := self.errors.pop(0)):
            raise error(name)

    def open(self, *, rw: bool, user_pin: str | None = None) -> FakeSession:
        """Open a session, and log in if a PIN is given."""
        assert rw
        if user_pin is not None:
            if self.logged_in:
                raise error("UserAlreadyLoggedIn")
            self.pins_tried.append(user_pin)
            if user_pin != self.pin:
                raise error("PinIncorrect")
        self.answer()
        return FakeSession(self)

    def put(
        self,
        key: ec.EllipticCurvePrivateKey,
        identifier: bytes,
        label: str,
        parameters: bytes,
        private: dict[Attribute, Any],
    ) -> None:
        """Store a key pair that was created outside the token."""
        shared = {Attribute.ID: identifier, Attribute.LABEL: label, Attribute.KEY_TYPE: KeyType.EC}
        numbers = key.public_key().public_numbers()
        size = key.key_size // 8
        point = b"\x04" + numbers.x.to_bytes(size, "big") + numbers.y.to_bytes(size, "big")
        public = {Attribute.EC_PARAMS: parameters, Attribute.EC_POINT: bytes((4, len(point))) + point}
        self.objects += [
            Stored(self, key, shared | {Attribute.CLASS: ObjectClass.PRIVATE_KEY} | private),
            Stored(self, key, shared | {Attribute.CLASS: ObjectClass.PUBLIC_KEY} | public),
        ]


class FakeLibrary:
    """The python-pkcs11 package, its only module, and the tokens that it finds."""

    PKCS11Error = PKCS11Error
    Attribute, KeyType, Mechanism, MechanismFlag, ObjectClass = (
        Attribute,
        KeyType,
        Mechanism,
        MechanismFlag,
        ObjectClass,
    )

    def __init__(self, *tokens: FakeToken) -> None:
        self.tokens = list(tokens)
        self.initialized = 0

    def lib(self, path: str) -> FakeLibrary:
        """Load the module."""
        if path != "/module.so":
            raise PKCS11Error(f"cannot load {path}")
        self.initialized += 1
        return self

    def get_slots(self, *, token_present: bool) -> list[FakeToken]:
        """Return the slots with tokens."""
        assert token_present
        return self.tokens

    def finalize(self) -> None:
        """End all logins."""
        for token in self.tokens:
            token.logged_in = False

    def initialize(self) -> None:
        """Initialize the library again, which finds the tokens."""
        self.initialized += 1
