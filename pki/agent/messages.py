"""The protobuf messages of the SPIFFE Workload API.

They are declared here, in their own descriptor pool, instead of in a generated package. Names and numbers are the
standard's, and unknown fields of a peer are skipped as protobuf requires. See ADR 12.

Source: https://github.com/spiffe/go-spiffe/blob/main/proto/spiffe/workload/workload.proto
"""

from __future__ import annotations

from typing import Any

from google.protobuf import struct_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from sluice.core import PkiError

_Fields = dict[str, tuple[int, str]]

_WORKLOAD: dict[str, _Fields] = {
    "X509SVIDRequest": {},
    "X509SVID": {
        "spiffe_id": (1, "string"),
        "x509_svid": (2, "bytes"),
        "x509_svid_key": (3, "bytes"),
        "bundle": (4, "bytes"),
        "hint": (5, "string"),
    },
    "X509SVIDResponse": {
        "svids": (1, "repeated .X509SVID"),
        "crl": (2, "repeated bytes"),
        "federated_bundles": (3, "map bytes"),
    },
    "X509BundlesRequest": {},
    "X509BundlesResponse": {"crl": (1, "repeated bytes"), "bundles": (2, "map bytes")},
    "JWTSVIDRequest": {"audience": (1, "repeated string"), "spiffe_id": (2, "string")},
    "JWTSVID": {"spiffe_id": (1, "string"), "svid": (2, "string"), "hint": (3, "string")},
    "JWTSVIDResponse": {"svids": (1, "repeated .JWTSVID")},
    "JWTBundlesRequest": {},
    "JWTBundlesResponse": {"bundles": (1, "map bytes")},
    "ValidateJWTSVIDRequest": {"audience": (1, "string"), "svid": (2, "string")},
    "ValidateJWTSVIDResponse": {"spiffe_id": (1, "string"), "claims": (2, ".google.protobuf.Struct")},
}
_TYPES = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
}


class InvalidMessage(PkiError):
    """Bytes that are not the protobuf message they should be."""


def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    file = FileDescriptorProto(name="sluice/workload.proto", syntax="proto3", dependency=[struct_pb2.DESCRIPTOR.name])
    for message, fields in _WORKLOAD.items():
        _declare(file.message_type.add(), message, fields)
    pool.AddSerializedFile(file.SerializeToString())
    return pool


def _declare(descriptor: DescriptorProto, name: str, fields: _Fields) -> None:
    descriptor.name = name
    for field, (number, kind) in fields.items():
        declared = descriptor.field.add(name=field, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
        label, _, element = kind.rpartition(" ")
        if label:
            declared.label = FieldDescriptorProto.LABEL_REPEATED
        if label == "map":
            entry = "".join(part.title() for part in field.split("_")) + "Entry"
            _declare(descriptor.nested_type.add(), entry, {"key": (1, "string"), "value": (2, element)})
            descriptor.nested_type[-1].options.map_entry = True
            element = f".{name}.{entry}"
        if element in _TYPES:
            declared.type = _TYPES[element]
        else:
            declared.type = FieldDescriptorProto.TYPE_MESSAGE
            declared.type_name = element


_POOL = _pool()


def _message(name: str) -> Any:  # noqa: ANN401  a class made at run time has no static type
    return GetMessageClass(_POOL.FindMessageTypeByName(name))


X509SVIDResponse = _message("X509SVIDResponse")
X509BundlesResponse = _message("X509BundlesResponse")
JWTSVIDRequest = _message("JWTSVIDRequest")
JWTSVIDResponse = _message("JWTSVIDResponse")
JWTBundlesResponse = _message("JWTBundlesResponse")
ValidateJWTSVIDRequest = _message("ValidateJWTSVIDRequest")
ValidateJWTSVIDResponse = _message("ValidateJWTSVIDResponse")


def decode(kind: Any, data: bytes) -> Any:  # noqa: ANN401  see _message
    """Decode ``data`` as a message of class ``kind``; raises :class:`InvalidMessage`."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidMessage(f"not a {kind.DESCRIPTOR.name}") from error


def encode(message: Any) -> bytes:  # noqa: ANN401  see _message
    """The bytes of a message, maps in a fixed order, so that equal content is equal bytes."""
    data: bytes = message.SerializeToString(deterministic=True)
    return data
