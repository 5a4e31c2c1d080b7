"""``[notify]``: receivers get only the kinds they name, and settings that cannot work are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluice.cli.config import load
from sluice.cli.errors import UsageError
from sluice.runtime.notify import Kind, MailConfig, NotifyConfig

HOOK = {"name": "chat", "kinds": ["job-failed"], "url": "https://chat.example.com/hooks/1"}
MAIL = {
    "name": "ops",
    "kinds": ["authority-ends"],
    "host": "mail.example.com",
    "sender": "sluice@example.com",
    "to": ["ops@example.com"],
}


def without(table: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name != key}


def read(**settings: Any) -> NotifyConfig:
    return msgspec.convert(settings, NotifyConfig, strict=False)


def test_nobody_is_notified_by_default() -> None:
    assert load(None, environment={}).runtime.notify == NotifyConfig()
    assert not NotifyConfig().receivers


def test_webhook_and_mail_receivers_are_read() -> None:
    config = read(webhooks=[HOOK], mails=[MAIL, MAIL | {"name": "tls", "tls": "implicit"}])
    assert [each.name for each in config.receivers] == ["chat", "ops", "tls"]
    assert config.webhooks[0].kinds == (Kind.JOB_FAILED,)
    assert [each.server_port for each in config.receivers if isinstance(each, MailConfig)] == [587, 465]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"webhooks": [without(HOOK, "kinds")]}, id="no kinds"),
        pytest.param({"webhooks": [HOOK | {"kinds": []}]}, id="empty kinds"),
        pytest.param({"webhooks": [HOOK | {"kinds": ["*"]}]}, id="all kinds"),
        pytest.param({"webhooks": [HOOK | {"kinds": ["job-fail"]}]}, id="unknown kind"),
        pytest.param({"webhooks": [HOOK | {"name": "a/b"}]}, id="name"),
        pytest.param({"webhooks": [HOOK | {"url": "http://chat.example.com/"}]}, id="plaintext"),
        pytest.param({"webhooks": [HOOK | {"url": "https://u:p@chat.example.com/"}]}, id="credentials in the URL"),
        pytest.param({"webhooks": [HOOK | {"url": "https://chat.example.com/?sig=1"}]}, id="secret in the URL"),
        pytest.param({"webhooks": [HOOK | {"url": "https://chat.example.com:x/"}]}, id="port"),
        pytest.param({"webhooks": [HOOK | {"url_file": "/x"}]}, id="two URLs"),
        pytest.param({"webhooks": [without(HOOK, "url")]}, id="no URL"),
        pytest.param({"webhooks": [HOOK | {"token": "secret"}]}, id="unknown key"),
        pytest.param({"webhooks": [HOOK, HOOK]}, id="the same name twice"),
        pytest.param({"webhooks": [HOOK], "mails": [MAIL | {"name": "chat"}]}, id="the same name in both"),
        pytest.param({"webhooks": [HOOK | {"name": f"n{n}"} for n in range(5)]}, id="too many"),
        pytest.param({"mails": [MAIL | {"to": []}]}, id="to nobody"),
        pytest.param({"mails": [MAIL | {"to": ["a@b.example"] * 21}]}, id="to too many"),
        pytest.param({"mails": [MAIL | {"to": ["a@b.example\r\nBcc: c@d.example"]}]}, id="header in an address"),
        pytest.param({"mails": [MAIL | {"to": ["Ada <a@b.example>"]}]}, id="name in an address"),
        pytest.param({"mails": [MAIL | {"sender": "nobody"}]}, id="sender"),
        pytest.param({"mails": [MAIL | {"host": "mail.example.com\r\nQUIT"}]}, id="host"),
        pytest.param({"mails": [MAIL | {"port": 70000}]}, id="port of mail"),
        pytest.param({"mails": [MAIL | {"tls": "none"}]}, id="mail in plaintext"),
        pytest.param({"mails": [MAIL | {"user": "ada"}]}, id="user without password"),
        pytest.param({"mails": [MAIL | {"password_file": "/x"}]}, id="password without user"),
        pytest.param({"mails": [MAIL | {"password": "x"}]}, id="password in the file"),
        pytest.param({"repeat_hours": 0}, id="repeat at once"),
        pytest.param({"group_minutes": -1}, id="group"),
    ],
)
def test_invalid_notify_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        read(**settings)


def test_an_invalid_notify_setting_is_reported_with_its_key(tmp_path: Path) -> None:
    file = tmp_path / "sluice.toml"
    file.write_text('[[notify.webhooks]]\nname = "chat"\nkinds = ["job-fail"]\nurl = "https://chat.example.com/"\n')
    with pytest.raises(UsageError, match=r"configuration notify\.webhooks, set by .*: Invalid enum value 'job-fail'"):
        load(file, environment={})
