from .job_limits import JobLimits as JobLimits
from .journal import (
    BoxId as BoxId,
    Destination as Destination,
    EgressJournal as EgressJournal,
    TooManyDestinations as TooManyDestinations,
)
from .left_rows import keep_rows as keep_rows, take_rows as take_rows
from .open_connection import OpenConnection as OpenConnection
from .reporter import EgressReporter as EgressReporter, reporting_egress as reporting_egress
