from .assets import PREFIX as PREFIX, find_asset as find_asset
from .formatting import Tone as Tone, expiry_tone as expiry_tone, identity_path as identity_path, left as left
from .rendering import (
    CONTENT_SECURITY_POLICY as CONTENT_SECURITY_POLICY,
    HTML as HTML,
    Pages as Pages,
    page_headers as page_headers,
)
