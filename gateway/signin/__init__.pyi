from .cookies import access_token_cookie as access_token_cookie
from .device import Device as Device
from .login import Login as Login
from .oidc import Directory as Directory, Provider as Provider, key_cache as key_cache
from .requests import (
    AuditNote as AuditNote,
    AuthRequest as AuthRequest,
    Refused as Refused,
    check_origin as check_origin,
    presented as presented,
    read as read,
)
from .responses import answer as answer, redirect as redirect
from .sign_in import SignIn as SignIn
