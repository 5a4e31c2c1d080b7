"""Access to the OpenSSL context behind an ``SSLContext``, which Python's ``ssl`` module hides."""

from __future__ import annotations

import _ssl
import ctypes
import ssl
from collections.abc import Iterable

ALLOW_CLIENT_RENEGOTIATION = 1 << 8
_SET_MODE, _NO_AUTO_CHAIN = 33, 8
_SET_SESSION_CACHE_MODE = 44
_LIBSSL = ctypes.CDLL(_ssl.__file__)
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
_kept: list[object] = []
"""Callbacks that OpenSSL may still call."""

for _name in ("X509_STORE_CTX_get_error", "X509_STORE_CTX_get_error_depth"):
    getattr(_LIBSSL, _name).argtypes = [ctypes.c_void_p]


def _pointer(context: ssl.SSLContext) -> ctypes.c_void_p:
    """Return the ``SSL_CTX *``, the first field after the object header."""
    return ctypes.c_void_p.from_address(id(context) + object.__basicsize__)


def overlook(context: ssl.SSLContext, errors: Iterable[int], depth: int | None = None) -> None:
    """Make path validation in ``context`` ignore ``errors`` (X509_V_ERR_...).

    They are ignored at ``depth``, or at every depth when it is None.
    """
    overlooked = frozenset(errors)

    def verify(good: int, store: int) -> int:
        at = _LIBSSL.X509_STORE_CTX_get_error_depth(ctypes.c_void_p(store))
        if not good and _LIBSSL.X509_STORE_CTX_get_error(store) in overlooked and depth in {None, at}:
            _LIBSSL.X509_STORE_CTX_set_error(ctypes.c_void_p(store), 0)
            return 1
        return good

    callback = _CALLBACK(verify)
    _kept.append(callback)
    _LIBSSL.SSL_CTX_set_verify(_pointer(context), ssl.CERT_REQUIRED + 1, callback)  # and fail without a certificate


def set_tls13_suites(context: ssl.SSLContext, suites: str) -> None:
    """Set the cipher suites of TLS 1.3."""
    assert _LIBSSL.SSL_CTX_set_ciphersuites(_pointer(context), suites.encode())


def allow_early_data(context: ssl.SSLContext, count: int) -> None:
    """Accept up to ``count`` bytes of early data."""
    assert _LIBSSL.SSL_CTX_set_max_early_data(_pointer(context), ctypes.c_uint32(count))


def show_no_more_than_loaded(context: ssl.SSLContext) -> None:
    """Send only the loaded chain; do not complete it from the trust anchors."""
    _LIBSSL.SSL_CTX_ctrl(_pointer(context), _SET_MODE, ctypes.c_long(_NO_AUTO_CHAIN), None)


def cache_no_sessions(context: ssl.SSLContext) -> None:
    """Disable the session cache of TLS 1.2, so that no session can be resumed."""
    _LIBSSL.SSL_CTX_ctrl(_pointer(context), _SET_SESSION_CACHE_MODE, ctypes.c_long(0), None)
