from .archive import JobArchive as JobArchive
from .entries import ArchivedJob as ArchivedJob
from .event_log import EventLog as EventLog
from .log_blocks import LogSource as LogSource
