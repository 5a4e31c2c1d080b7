"""The online authority: enrolment by join token, renewal by certificate, job identities for JobManagers, a ledger."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
