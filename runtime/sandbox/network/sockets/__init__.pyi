from .addresses import (
    MAX_SOCKADDR_BYTES as MAX_SOCKADDR_BYTES,
    family_of as family_of,
    for_family as for_family,
    parse as parse,
)
from .calls import Call as Call, cookie_of as cookie_of, namespace_of as namespace_of
from .holders import take as take
from .kernel import connect as connect
from .last_counters import LastCounters as LastCounters, final_counters as final_counters
from .options import copy_options as copy_options, send_timeout as send_timeout
from .sock_diag import Key as Key, SocketTable as SocketTable
from .unix_sockets import (
    NOT_THERE as NOT_THERE,
    acting_as as acting_as,
    connect_unix as connect_unix,
    foreign_name as foreign_name,
)
