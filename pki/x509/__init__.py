"""Keys, certificates and requests as values: profiles, names, parsing, verification, key stores. No I/O."""
