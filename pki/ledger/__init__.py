"""The ledger of issued certificates.

Hash-chained records, its file, and what was issued while the authority was offline.
"""
