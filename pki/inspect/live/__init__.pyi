from .address import Address as Address, looks_like_address as looks_like_address
from .handshake import (
    WEB_PROTOCOLS as WEB_PROTOCOLS,
    Hello as Hello,
    Unreachable as Unreachable,
    shake_hands as shake_hands,
)
from .report import (
    HandshakeSummary as HandshakeSummary,
    Live as Live,
    LiveSummary as LiveSummary,
    inspect_live as inspect_live,
    presented_chain as presented_chain,
)
