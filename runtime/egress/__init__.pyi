from .job_limits import JobLimits as JobLimits
from .journal import (
    BoxId as BoxId,
    Destination as Destination,
    EgressJournal as EgressJournal,
    TooManyDestinations as TooManyDestinations,
)
from .open_connection import OpenConnection as OpenConnection
from .reporter import EgressReporter as EgressReporter, reporting_egress as reporting_egress
from .unsent_rows import UnsentRows as UnsentRows
