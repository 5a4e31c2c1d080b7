"""The resources of REST, one module each: handlers and the ``ROUTES`` to them."""
