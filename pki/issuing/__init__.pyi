from .bulk import (
    Action as Action,
    DatabaseDestination as DatabaseDestination,
    DirectoryDestination as DirectoryDestination,
    IssueResult as IssueResult,
    check_all as check_all,
    issue_all as issue_all,
)
from .engine import IssuingEngine as IssuingEngine
from .host import HostRequest as HostRequest, IssuedHost as IssuedHost
from .inventory import (
    MAX_INVENTORY_BYTES as MAX_INVENTORY_BYTES,
    parse_duration as parse_duration,
    parse_inventory as parse_inventory,
)
from .issuer import (
    DirectoryIssuer as DirectoryIssuer,
    Issuer as Issuer,
    LocalIssuer as LocalIssuer,
    install_chain as install_chain,
)
from .leaf import (
    LeafRequest as LeafRequest,
    SignedChain as SignedChain,
    names_of as names_of,
    renewal_request as renewal_request,
)
