from .service import XdsService as XdsService, xds_service as xds_service
from .status import XdsStatus as XdsStatus, read_status as read_status, status_file as status_file
