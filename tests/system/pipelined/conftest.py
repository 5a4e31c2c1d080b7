"""Workers on real sockets, as the integration tests have them."""

from tests.integration.shuffle.conftest import identities, pki, start_worker

__all__ = ["identities", "pki", "start_worker"]
