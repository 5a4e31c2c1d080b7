"""Sluice: PySpark pipelines on a cluster in which every internal connection is mutual TLS.

The rooms of this package stand at the top level of the repository; here they are links, so that each module has one
name, ``sluice.…``, in a checkout and in an installed wheel (docs/adr/0090-install-one-package.md).
"""
