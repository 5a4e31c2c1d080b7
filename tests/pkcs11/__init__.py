"""Keys of authorities in a real token: SoftHSM, by ``make test-pkcs11``."""
