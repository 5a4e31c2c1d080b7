"""Settings of the gateway (section ``[gateway]`` of ``sluice.toml`` with its tables), and names of its processes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
