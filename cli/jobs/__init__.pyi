from .commands import comma_separated as comma_separated, parse_conf as parse_conf
from .connections import COLUMNS as COLUMNS, all_connections as all_connections, connection_rows as connection_rows
from .follow import Follower as Follower, report_verdict as report_verdict
from .modes import OneJob as OneJob
