"""Authority keys in a real PKCS #11 token, SoftHSM. Run by ``make test-pkcs11``."""
