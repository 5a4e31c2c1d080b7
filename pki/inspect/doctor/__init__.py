"""``sluice pki doctor``: what is wrong in a home and with its running listeners, each finding with its remedy.

``pki.inspect.doctor.scan`` reads, ``pki.inspect.doctor.online`` connects; the other modules decide, from values alone.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
