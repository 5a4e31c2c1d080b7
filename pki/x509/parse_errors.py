"""The exceptions that the cryptography library raises for damaged or unsupported input.

They have no common base; parsing is lazy, so that they also come out of properties long after loading.
"""

from __future__ import annotations

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

DAMAGED = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
    x509.InvalidVersion,
)
"""Catch these around everything that touches a certificate, request or key from outside."""

DAMAGED_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What comes out of decoding JSON that is none of ours; UTF-8 and nesting have exceptions of their own."""
