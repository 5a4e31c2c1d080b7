from .pages import AdminPages as AdminPages
from .revocation_client import RevocationClient as RevocationClient
