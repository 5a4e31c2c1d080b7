"""Envoy's API as protobuf messages, made at run time from the descriptors beside this module.

The published packages of these messages collide with the package of the Envoy binary (both own ``envoy/__init__.py``),
so their descriptors are shipped instead, in a pool of their own (``scripts/make-envoy-api``, ADR 27). Configuration is
written as JSON, as in Envoy's documentation, and turned into messages here: a field that Envoy does not know, or a
value of the wrong type, is an error before anything is sent.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from sluice.core.errors import SluiceError

DESCRIPTORS = Path(__file__).with_name("envoy_api.binpb.gz")

_ANY = "google.protobuf.Any"
TYPE_PREFIX = "type.googleapis.com/"
REQUEST = TYPE_PREFIX + "envoy.service.discovery.v3.DiscoveryRequest"
RESPONSE = TYPE_PREFIX + "envoy.service.discovery.v3.DiscoveryResponse"
LISTENER = TYPE_PREFIX + "envoy.config.listener.v3.Listener"
ROUTES = TYPE_PREFIX + "envoy.config.route.v3.RouteConfiguration"
CLUSTER = TYPE_PREFIX + "envoy.config.cluster.v3.Cluster"
SECRET = TYPE_PREFIX + "envoy.extensions.transport_sockets.tls.v3.Secret"
EXTENSION = TYPE_PREFIX + "envoy.config.core.v3.TypedExtensionConfig"

SHORT_NAMES: Mapping[str, str] = {
    CLUSTER: "clusters",
    LISTENER: "listeners",
    ROUTES: "routes",
    SECRET: "secrets",
    EXTENSION: "extensions",
}
"""The kinds of resources that are served, in the order that Envoy needs."""

Message = Any
"""A class made at run time has no static type."""


class XdsError(SluiceError):
    """Configuration that Envoy would not understand, or a message that is not Envoy's."""


@cache
def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(gzip.decompress(DESCRIPTORS.read_bytes())).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


@cache
def message_class(name: str) -> Message:
    """The class of the message with this full name (a type URL will do)."""
    try:
        return GetMessageClass(_pool().FindMessageTypeByName(name.removeprefix(TYPE_PREFIX)))
    except KeyError as error:
        raise XdsError(f"{name} is not among the descriptors", "add its file to scripts/make-envoy-api") from error


def from_json(type_url: str, document: Mapping[str, object]) -> Message:
    """The message that ``document`` describes; raises ``XdsError`` naming what does not fit."""
    message = message_class(type_url)()
    try:
        json_format.ParseDict(dict(document), message, descriptor_pool=_pool())
    except (json_format.Error, TypeError) as error:
        raise XdsError(f"not a {type_url.rpartition('.')[2]}: {error}") from error
    _repack(message)
    return message


def _repack(message: Message) -> None:
    """Encode the messages inside of ``Any`` again with maps in a fixed order.

    The parser's order differs between processes, so equal content would not give equal bytes.
    """
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"].message_type
            children = list(value.values()) if inner is not None else []
        else:
            children = [value] if hasattr(value, "DESCRIPTOR") else list(value)
        for child in children:
            if child.DESCRIPTOR.full_name == _ANY:
                packed = message_class(child.type_url).FromString(child.value)
                _repack(packed)
                child.value = encode(packed)
            else:
                _repack(child)


def to_json(message: Message) -> dict[str, Any]:
    """The inverse of :func:`from_json`, for people and tests."""
    document: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True, descriptor_pool=_pool()
    )
    return document


def encode(message: Message) -> bytes:
    """The bytes of a message, maps in a fixed order: equal content gives equal bytes."""
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def decode(type_url: str, data: bytes) -> Message:
    """The message in ``data``; raises :class:`XdsError`."""
    try:
        return message_class(type_url).FromString(data)
    except DecodeError as error:
        raise XdsError(f"not a {type_url.rpartition('.')[2]}") from error
