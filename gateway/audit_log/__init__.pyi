from .access_lines import AUTH_SERVICE_OPERATION as AUTH_SERVICE_OPERATION, records_of as records_of
from .access_log_reader import access_file as access_file
from .access_rotation import make_access_log as make_access_log, rotating as rotating
from .chain import AuditRecord as AuditRecord, Checkpoint as Checkpoint, parse_checkpoint as parse_checkpoint
from .checkpoint_file import CheckpointFile as CheckpointFile
from .keys import (
    SIGNING_REFERENCE as SIGNING_REFERENCE,
    VERIFICATION_KEY as VERIFICATION_KEY,
    KeyInToken as KeyInToken,
    VerificationKey as VerificationKey,
    key_place as key_place,
)
from .log import (
    AuditLog as AuditLog,
    audit_directory as audit_directory,
    audit_file as audit_file,
    record_act as record_act,
)
from .log_files import log_files as log_files
from .log_reader import Filter as Filter, LineReader as LineReader, event_time as event_time, follow as follow
from .maintenance import maintaining as maintaining
from .receipts import prove_receipt as prove_receipt, receipt_detail as receipt_detail
from .recorded_policy import RecordedPolicy as RecordedPolicy
from .segments import CHECKPOINT as CHECKPOINT
from .traffic import TrafficReader as TrafficReader
from .verification import Verified as Verified, read_records as read_records, verify_log as verify_log
from .witness import witness_at as witness_at
from .writer import AuditWriter as AuditWriter
