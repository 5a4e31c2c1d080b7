from .audiences import TOKEN_OPERATION as TOKEN_OPERATION
from .destinations import (
    Destination as Destination,
    UnclearDestination as UnclearDestination,
    authority as authority,
    parse_authority as parse_authority,
)
from .egress import EGRESS_OPERATION as EGRESS_OPERATION, EgressRuling as EgressRuling, EgressSubject as EgressSubject
from .operations import (
    OWNED_OPERATIONS as OWNED_OPERATIONS,
    is_pattern as is_pattern,
    known_operations as known_operations,
    matches as matches,
)
from .policy import Policy as Policy, Verdict as Verdict
from .policy_file import (
    DEFAULT_POLICY as DEFAULT_POLICY,
    MAX_POLICY_BYTES as MAX_POLICY_BYTES,
    PolicyFile as PolicyFile,
    read_policy as read_policy,
)
from .policy_table import Case as Case, CaseResult as CaseResult, decide_case as decide_case, parse_table as parse_table
from .routes import (
    PARAMETER_PATTERN as PARAMETER_PATTERN,
    TARGET_PATTERN as TARGET_PATTERN,
    Route as Route,
    RouteTable as RouteTable,
    UnsafePath as UnsafePath,
    split_target as split_target,
)
