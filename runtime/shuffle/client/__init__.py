"""The data plane's client in Python: it pushes map outputs, reads them, and follows shuffles while they are written."""
