"""Decisions about connections of jobs to destinations outside, for Envoy."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
