"""TLS on the wire, as far as an audit needs it: hellos no library would send, and a TLS 1.3 client that tells all.

Python's ssl cannot offer a single group, suite or signature scheme, says nothing about certificate requests, session
tickets or early data, and hides alerts. Nothing here protects anything: it must never carry a secret.
"""
