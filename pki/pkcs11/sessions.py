"""Sessions with tokens: one for each token and process, opened at the first use and again after a loss.

A lock protects every call into a module, since many modules are not thread-safe. A child of ``fork`` has no session; it
initializes the module anew when it needs one (PKCS#11 2.40, C_Initialize).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sluice.core import StoreError
from sluice.pki.pkcs11.errors import HOPELESS, PIN_REFUSED, last_try, missing_token, token_error, wrong_pin
from sluice.pki.pkcs11.pin import read_pin
from sluice.pki.pkcs11.uri import TokenUri

T = TypeVar("T")

EXTRA = "sluice[pkcs11]"


@dataclass(slots=True)
class Session:
    """A logged-in session, and its cached objects."""

    handle: Any
    found: dict[TokenUri, Any] = field(default_factory=dict)


def load_library() -> Any:  # noqa: ANN401  a module that is there only when it was installed
    """The package ``pkcs11``, imported only when a token is used."""
    try:
        return importlib.import_module("pkcs11")
    except ImportError as error:
        raise StoreError("the package python-pkcs11 is not installed", f"pip install '{EXTRA}'") from error


class Sessions:
    """The sessions of this process.

    Args:
        library: returns the package ``pkcs11``.
        check_module: raises for a module that must not be loaded.
    """

    def __init__(
        self,
        library: Callable[[], Any] = load_library,
        check_module: Callable[[str], None] | None = None,
    ) -> None:
        self._library = library
        self._check_module = check_module or check_module_file
        self._lock = threading.RLock()
        self._modules: dict[str, Any] = {}
        self._open: dict[TokenUri, Session] = {}
        self._refused: dict[TokenUri, bytes] = {}
        self._of_parent: list[Session] = []
        self._stale: set[str] = set()
        os.register_at_fork(after_in_child=self._forget)

    def run(self, uri: TokenUri, act: Callable[[Any, Session], T]) -> T:
        """Call ``act`` with the package and the session of the token; once more in a new session if that one is lost.

        Raises:
            StoreError: says what is wrong with the token, its module or its PIN.
        """
        library = self._library()
        with self._lock:
            known = uri.place in self._open
            try:
                return act(library, self._session(library, uri.place))
            except library.PKCS11Error as error:
                if type(error).__name__ in HOPELESS or not known:
                    self._drop(uri)
                    raise token_error(uri, error) from error
            except StoreError:
                if not known:
                    raise
            # The token was removed, or its service restarted: handles, and the module's list of slots, are invalid.
            try:
                self._reset(uri.module)
                return act(library, self._session(library, uri.place))
            except library.PKCS11Error as error:
                self._drop(uri)
                raise token_error(uri, error) from error
            except StoreError:
                self._drop(uri)
                raise

    def _session(self, library: Any, place: TokenUri) -> Session:  # noqa: ANN401
        if (session := self._open.get(place)) is None:
            session = self._open[place] = Session(self._log_in(library, place))
        return session

    def _log_in(self, library: Any, place: TokenUri) -> Any:  # noqa: ANN401
        token = self._find(library, place)
        pin = read_pin(place.pin_source)
        digest = hashlib.sha256(pin.encode()).digest()
        if self._refused.get(place) == digest:
            raise wrong_pin(place)
        flags = int(token.flags)
        if flags & _PIN_LOCKED:
            raise StoreError(f"{place.name} has locked its PIN after wrong ones", "unlock it with its own tool")
        if flags & _PIN_FINAL_TRY:
            raise last_try(place)
        try:
            return self._open_session(library, token, pin)
        except library.PKCS11Error as error:
            if type(error).__name__ in PIN_REFUSED:
                self._refused[place] = digest
            raise

    def _open_session(self, library: Any, token: Any, pin: str) -> Any:  # noqa: ANN401
        try:
            return token.open(rw=True, user_pin=pin)
        except library.PKCS11Error as error:
            if type(error).__name__ != "UserAlreadyLoggedIn":
                raise
            return token.open(rw=True)  # another reference of this process names the same token

    def _find(self, library: Any, place: TokenUri) -> Any:  # noqa: ANN401
        module = self._module(library, place.module)
        found = [token for token in _tokens(library, module) if _fits(token, place)]
        if not found:
            # Modules look for tokens when they are initialized.
            self._reset(place.module)
            found = [token for token in _tokens(library, module) if _fits(token, place)]
        if not found:
            raise missing_token(place)
        if len(found) > 1:
            raise StoreError(f"{len(found)} tokens match: {place.name}", "name one by its serial=NUMBER")
        return found[0]

    def _module(self, library: Any, path: str) -> Any:  # noqa: ANN401
        if (module := self._modules.get(path)) is None:
            self._check_module(path)
            try:
                module = self._modules[path] = library.lib(path)
            except library.PKCS11Error as error:
                raise StoreError(
                    f"{path} is not a PKCS#11 module that runs here: {error}"[:300], "check module-path"
                ) from error
        if path in self._stale:
            self._stale.discard(path)
            self._reset(path)
        return module

    def _reset(self, path: str) -> None:
        """Initialize a module again, which ends the sessions with its tokens."""
        for place in [place for place in self._open if place.module == path]:
            del self._open[place]
        if (module := self._modules.get(path)) is not None:
            with contextlib.suppress(RuntimeError):
                module.finalize()
            module.initialize()

    def _drop(self, uri: TokenUri) -> None:
        if (session := self._open.pop(uri.place, None)) is not None:
            with contextlib.suppress(RuntimeError):
                session.handle.close()

    def _forget(self) -> None:
        self._lock = threading.RLock()  # another thread of the parent may have held it
        self._of_parent += self._open.values()  # closed by the parent, and not here
        self._open = {}
        self._stale = set(self._modules)


_PIN_FINAL_TRY = 0x00020000
_PIN_LOCKED = 0x00040000
"""Flags of a token (PKCS#11 2.40, CK_TOKEN_INFO)."""


def _tokens(library: Any, module: Any) -> list[Any]:  # noqa: ANN401
    found = []
    for slot in module.get_slots(token_present=True):
        with contextlib.suppress(library.PKCS11Error):  # a broken token cannot be the right one
            found.append(slot.get_token())
    return found


def _fits(token: Any, place: TokenUri) -> bool:  # noqa: ANN401
    serial = token.serial.decode("utf-8", "replace").strip("\0 ")
    wanted = (
        (place.token, token.label),
        (place.serial, serial),
        (place.manufacturer, token.manufacturer_id),
        (place.model, token.model),
    )
    return all(not each or each == str(has).strip("\0 ") for each, has in wanted)


def check_module_file(path: str) -> None:
    """Check that only root and this user can change a module, because its code runs in this process."""
    try:
        state = Path(path).stat()
    except OSError as error:
        raise StoreError(
            f"there is no PKCS#11 module {path}: {error.strerror}", "install the token's software, or check module-path"
        ) from error
    if not stat.S_ISREG(state.st_mode):
        raise StoreError(f"{path} is not a file", "module-path is that of a library, as libsofthsm2.so")
    if state.st_uid not in {0, os.geteuid()} or state.st_mode & 0o022:
        raise StoreError(f"others can change {path}, which would run here", f"chown root {path}; chmod go-w {path}")
