"""Arrow Flight SQL through the gateway: SQL tools use the Spark Connect session of their principal.

The relay serves it next to Spark Connect when ``gateway.flight_sql`` is on (ADR 133).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
