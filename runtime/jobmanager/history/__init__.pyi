from .archive import JobArchive as JobArchive
from .entries import ArchivedJob as ArchivedJob
from .log_blocks import LogSource as LogSource
