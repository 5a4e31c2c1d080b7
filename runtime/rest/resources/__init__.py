"""The resources of REST, one module each: its handlers, and ``ROUTES`` that lead to them."""
