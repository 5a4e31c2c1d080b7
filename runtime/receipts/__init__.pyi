from .errors import ReceiptNotRecorded as ReceiptNotRecorded, ReceiptUnavailable as ReceiptUnavailable
from .issuing import Prove as Prove, ReceiptIssuer as ReceiptIssuer
from .verification import NOT_PROVEN as NOT_PROVEN, VerifiedReceipt as VerifiedReceipt, verify_receipt as verify_receipt
