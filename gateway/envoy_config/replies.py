"""Envoy's local replies: problem documents and HTML pages, which reveal nothing about the upstreams."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.gateway.credentials import ACCESS_TOKEN_COOKIE
from sluice.gateway.problem import CONTENT_TYPE, problem
from sluice.gateway.problem_page import POLICY, POLICY_HEADER, problem_page

DENIED_PATH = "/auth/denied"
"""A path of the auth service, which knows the reason of a refusal."""

LOCAL_DETAILS = {
    400: "The request is not valid HTTP for this gateway.",
    401: "This needs a valid credential.",
    403: "The request was refused.",
    404: "There is no such resource here.",
    408: "The request did not arrive in time.",
    411: "Declare the length of the body (Content-Length).",
    413: "The body is larger than this gateway accepts.",
    426: "This version of HTTP is not served.",
    429: "Too many requests.",
    431: "The headers are larger than this gateway accepts.",
    502: "The cluster gave no valid answer.",
    503: "The cluster cannot answer now; try again.",
    504: "The cluster did not answer in time.",
}


def local_replies() -> dict[str, object]:
    """Envoy's local replies. Responses of the auth service, which selects HTML by the same rule, keep their body."""
    refused: list[dict[str, object]] = [{"response_flag_filter": {"flags": ["UAEX"]}}, _status_filter("LE", 499)]
    from_auth = [
        {
            "filter": _all_of(*refused, *_PEOPLE),
            "body_format_override": _text_format("%LOCAL_REPLY_BODY%", _HTML),
            "headers_to_add": [_PAGE_POLICY],
        },
        {"filter": _all_of(*refused), "body_format_override": _text_format("%LOCAL_REPLY_BODY%", CONTENT_TYPE)},
    ]
    pages = [
        {
            "filter": _all_of(_status_filter("EQ", status), *_PEOPLE),
            "body_format_override": _text_format(problem_page(status, detail).replace("%", "%%"), _HTML),
            "headers_to_add": [_PAGE_POLICY],
        }
        for status, detail in LOCAL_DETAILS.items()
    ]
    by_status = [
        {"filter": _status_filter("EQ", status), "body_format_override": _json_format(problem(status, detail))}
        for status, detail in LOCAL_DETAILS.items()
    ]
    other: dict[str, object] = {"type": "about:blank", "title": "Refused", "status": "%RESPONSE_CODE%"}
    return {"mappers": [*from_auth, _to_sign_in(), *pages, *by_status], "body_format": _json_format(other)}


def _to_sign_in() -> dict[str, object]:
    """Redirects a browser navigation that Envoy refused because of its access token cookie to the auth service.

    The auth service shows the sign-in page when the session was revoked, or says that the user lacks permission.
    Programs get the problem document.
    """
    looks: list[dict[str, object]] = [
        {"name": ":method", "string_match": {"exact": "GET"}},
        {"name": "sec-fetch-mode", "string_match": {"exact": "navigate"}},
        {"name": "accept", "string_match": {"contains": "text/html"}},
        {"name": "cookie", "string_match": {"contains": f"{ACCESS_TOKEN_COOKIE}="}},
        {"name": "authorization", "present_match": True, "invert_match": True},
    ]
    filters: list[dict[str, object]] = [{"header_filter": {"header": look}} for look in looks]
    filters.append(_status_filter("EQ", 403))
    return {
        "filter": _all_of(*filters),
        "status_code": 302,
        "headers_to_add": [
            {"header": {"key": "location", "value": f"{DENIED_PATH}?return_to=%PATH(NQ)%"}},
            {"header": {"key": "cache-control", "value": "no-store"}},
        ],
    }


_HTML = "text/html; charset=utf-8"
# Replaces the default policy, under which a browser would not load the style sheet.
_PAGE_POLICY = {
    "header": {"key": POLICY_HEADER, "value": POLICY},
    "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
}
_PEOPLE: tuple[dict[str, object], ...] = (
    {"header_filter": {"header": {"name": "accept", "string_match": {"contains": "text/html"}}}},
    {"header_filter": {"header": {"name": "authorization", "present_match": True, "invert_match": True}}},
)
"""The conditions of :func:`sluice.gateway.problem_page.wants_page`."""


def _all_of(*filters: dict[str, object]) -> dict[str, object]:
    return {"and_filter": {"filters": list(filters)}}


def _text_format(text: str, content_type: str) -> dict[str, object]:
    return {"text_format_source": {"inline_string": text}, "content_type": content_type}


def _status_filter(operation: str, status: int) -> dict[str, object]:
    value = {"default_value": status, "runtime_key": "sluice.unset"}
    return {"status_code_filter": {"comparison": {"op": operation, "value": value}}}


def _json_format(document: Mapping[str, object]) -> dict[str, object]:
    return {"json_format": dict(document), "content_type": CONTENT_TYPE}
