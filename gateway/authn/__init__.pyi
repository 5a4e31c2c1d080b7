from .authenticator import (
    MAX_TOKEN_CHARACTERS as MAX_TOKEN_CHARACTERS,
    Authenticator as Authenticator,
    PresentedCredentials as PresentedCredentials,
    parse_cookies as parse_cookies,
)
from .client_certificate import HEADER as HEADER
from .credential_validity import IsValid as IsValid, answer as answer, check_in as check_in, validity_in as validity_in
