"""The exceptions that the cryptography library raises for damaged or unsupported input.

They have no common base. Parsing is lazy, so properties may raise them long after loading.
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
"""Catch these around every access to a certificate, request or key from outside."""

DAMAGED_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions of decoding foreign JSON; bad UTF-8 and deep nesting have their own."""
