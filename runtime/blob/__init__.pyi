from .client import fetch_blob as fetch_blob
from .errors import (
    BlobCorrupt as BlobCorrupt,
    BlobError as BlobError,
    BlobNotFound as BlobNotFound,
    BlobTooLarge as BlobTooLarge,
    BlobUnavailable as BlobUnavailable,
    InvalidBlobName as InvalidBlobName,
    TooManyUploads as TooManyUploads,
    UploadConflict as UploadConflict,
    UploadNotFound as UploadNotFound,
)
from .names import check_file_name as check_file_name, check_job_id as check_job_id
from .server import BlobServer as BlobServer
from .store import BlobStore as BlobStore
from .uploads import Upload as Upload, sweeping as sweeping
