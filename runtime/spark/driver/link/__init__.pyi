from .jobmaster_link import JobMasterLink as JobMasterLink, first_of as first_of
from .lease import DriverLease as DriverLease
