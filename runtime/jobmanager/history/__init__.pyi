from .archive import JobArchive as JobArchive
from .event_log import EventLog as EventLog
