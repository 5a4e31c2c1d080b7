"""Workers on real sockets, as the integration tests have them, and a whole service of real processes."""

from tests.integration.shuffle.conftest import identities, pki, start_worker
from tests.system.shuffle_service.conftest import world

__all__ = ["identities", "pki", "start_worker", "world"]
