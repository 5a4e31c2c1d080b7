"""The challenge dns-01 (RFC 8555, section 8.4): a TXT record below the name."""

from __future__ import annotations

import hmac

from sluice.pki.acme.identifiers import Identifier
from sluice.pki.acme.jwk import encode
from sluice.pki.acme.problems import AcmeProblem, ProblemType
from sluice.pki.acme.validation.reach import Resolver
from sluice.pki.x509 import key_authorization_digest


async def check_dns(identifier: Identifier, key_authorization: str, resolver: Resolver) -> None:
    """Raise :class:`AcmeProblem` unless one of the TXT records is that of this challenge."""
    wanted = encode(key_authorization_digest(key_authorization)).encode()
    name = f"_acme-challenge.{identifier.value}"
    found = await resolver.texts(name)
    if not any(hmac.compare_digest(each, wanted) for each in found):
        raise AcmeProblem(
            ProblemType.INCORRECT_RESPONSE, f"none of the {len(found)} TXT records of {name} is that of this challenge"
        )
