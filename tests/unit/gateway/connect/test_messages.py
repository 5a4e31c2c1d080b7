"""A Spark Connect message belongs to the authenticated principal, whatever user it claims."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, strategies as st
from pyspark.sql.connect.proto import base_pb2 as proto

from sluice.gateway.connect.messages import (
    METHODS,
    SERVICE,
    USER_CONTEXT_FIELD,
    MalformedMessage,
    bind_user,
    user_context,
)

REQUESTS: dict[str, Any] = {
    method.name: method.input_type for method in proto.DESCRIPTOR.services_by_name["SparkConnectService"].methods
}


def request(method: str) -> Any:
    """The class of a method's requests."""
    return getattr(proto, REQUESTS[method].name)


def test_every_spark_connect_method_is_known_with_the_expected_user_field() -> None:
    assert proto.DESCRIPTOR.services_by_name["SparkConnectService"].full_name == SERVICE
    assert sorted(METHODS) == sorted(REQUESTS)
    for descriptor in REQUESTS.values():
        field = descriptor.fields_by_number[USER_CONTEXT_FIELD]
        assert (field.name, field.message_type.full_name) == ("user_context", "spark.connect.UserContext")
        users = [each.name for each in descriptor.fields if each.message_type is field.message_type]
        assert users == ["user_context"], "a second place for a user"


@pytest.mark.parametrize("method", METHODS)
def test_the_claimed_user_is_replaced_and_the_rest_stays(method: str) -> None:
    message = request(method)(session_id="b0f9c7a2")
    message.user_context.user_id = "victim"
    message.user_context.user_name = "Victim"
    if "client_type" in message.DESCRIPTOR.fields_by_name:
        message.client_type = "test"
    bound = request(method).FromString(bind_user(message.SerializeToString(), "ada"))
    assert (bound.user_context.user_id, bound.user_context.user_name) == ("ada", "ada")
    message.ClearField("user_context")
    bound.ClearField("user_context")
    assert bound == message


def victim(position: int) -> bytes:
    """Return a message that names ``victim`` at a place where some parser may find it."""
    claim = proto.ConfigRequest(user_context=proto.UserContext(user_id="victim")).SerializeToString()
    rest = proto.ConfigRequest(session_id="s", client_type="c").SerializeToString()
    name = proto.ConfigRequest(user_context=proto.UserContext(user_name="victim")).SerializeToString()
    long_tag = b"\x92\x00" + claim[1:]  # field 2 with a tag of two bytes, which parsers take
    extension = proto.UserContext()
    extension.extensions.add(type_url="type.example/victim")
    extended = proto.ConfigRequest(user_context=extension).SerializeToString()
    return [claim + rest, rest + claim, claim + rest + claim, claim + name, rest + long_tag, extended, rest][position]


@pytest.mark.parametrize("position", range(7))
def test_a_repeated_user_field_is_replaced_at_any_position(position: int) -> None:
    bound = bind_user(victim(position), "ada")
    assert b"victim" not in bound
    assert proto.ConfigRequest.FromString(bound).user_context == proto.UserContext(user_id="ada", user_name="ada")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x12", id="tag alone"),
        pytest.param(b"\x12\x05ab", id="length beyond the end"),
        pytest.param(b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", id="endless length"),
        pytest.param(b"\x13\x14", id="group"),
        pytest.param(b"\x16\x00", id="unknown wire type"),
        pytest.param(b"\x00\x01", id="field 0"),
        pytest.param(b"\x0d\x00", id="short fixed"),
        pytest.param(b"\x08", id="number missing"),
        pytest.param(b"\x08\x01" * 100_001, id="too many fields"),
    ],
)
def test_a_malformed_message_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        bind_user(data, "ada")


@given(st.binary(max_size=200), st.text(min_size=1, max_size=200).filter(lambda name: name.isprintable()))
def test_arbitrary_bytes_are_refused_or_bound_to_the_principal(data: bytes, principal: str) -> None:
    try:
        bound = bind_user(data, principal)
    except MalformedMessage:
        return
    assert bound.endswith(user_context(principal))
    assert bind_user(bound, principal) == bound
    try:
        message = proto.ConfigRequest.FromString(bound)
    except DecodeError:  # the server refuses what it cannot read, too
        return
    assert message.user_context.user_id == principal
