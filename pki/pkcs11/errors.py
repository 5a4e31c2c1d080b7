"""Explains errors of a token's module, with cause and remedy. Decisions only."""

from __future__ import annotations

from typing import Final

from sluice.core import StoreError
from sluice.pki.pkcs11.uri import TokenUri

PIN_REFUSED: Final = frozenset({"PinIncorrect", "PinInvalid", "PinLenRange", "PinExpired", "PinLocked"})
"""Refusals of a PIN after which it is not tried again, because a token locks itself after a few wrong ones."""
HOPELESS: Final = PIN_REFUSED | {
    "UserPinNotInitialized",
    "MechanismInvalid",
    "FunctionNotSupported",
    "KeySizeRange",
    "KeyTypeInconsistent",
    "TokenWriteProtected",
    "DeviceMemory",
    "AttributeValueInvalid",
    "TemplateInconsistent",
    "TemplateIncomplete",
}
"""A new session would not change these."""

_CAUSES: Final = {
    "UserPinNotInitialized": ("has no user PIN yet", "set one with the token's own tool"),
    "PinExpired": ("says that its PIN has expired", "set a new one with the token's own tool"),
    "PinLocked": ("has locked its PIN after wrong ones", "unlock it with its security officer's PIN"),
    "TokenNotPresent": ("was removed", "plug it in, or start its service"),
    "DeviceRemoved": ("was removed", "plug it in, or start its service"),
    "MechanismInvalid": ("does not sign with ECDSA, or not with this curve", "use another token or pki.key_algorithm"),
    "FunctionNotSupported": ("cannot do this", "is it the right module?"),
    "KeySizeRange": ("does not have this curve", "use ecdsa-p256 (pki.key_algorithm)"),
    "TokenWriteProtected": ("is write-protected", "no key can be made or removed in it"),
    "DeviceMemory": ("is full", "remove keys that are not needed with its own tool"),
    "DeviceError": ("does not answer correctly", "look at it, and at its service"),
}


def token_error(uri: TokenUri, error: Exception) -> StoreError:
    """The error for the user from ``error``, which the library raised for the token of ``uri``."""
    name = type(error).__name__
    if name in {"PinIncorrect", "PinInvalid", "PinLenRange"}:
        return wrong_pin(uri)
    what, remedy = _CAUSES.get(name, (f"refused: {name} {error}".rstrip()[:200], "see the log of its module"))
    return StoreError(f"{uri.name} {what}", remedy)


def wrong_pin(uri: TokenUri) -> StoreError:
    """The PIN was wrong, now or before."""
    return StoreError(
        f"{uri.name} does not take the PIN in {uri.pin_source}",
        "correct it; this process does not try the same PIN again, because the token locks itself after a few",
    )


def last_try(uri: TokenUri) -> StoreError:
    """One more wrong PIN would lock the token."""
    return StoreError(
        f"{uri.name} locks itself at the next wrong PIN, so none is tried",
        "log in once with its own tool and the right PIN, which resets the count",
    )


def missing_token(uri: TokenUri) -> StoreError:
    """No token of this module matches."""
    return StoreError(f"{uri.name} is not there, says {uri.module}", "plug it in, or check the label and its service")


def missing_key(uri: TokenUri) -> StoreError:
    """The token has no such key."""
    return StoreError(
        f"there is no key {uri.object!r} with id {uri.id.hex()} in {uri.name}",
        "is it the token in which the key was made? a lost key cannot be recovered, only replaced",
    )
