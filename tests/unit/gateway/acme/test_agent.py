"""The ACME agent beside Envoy: it orders on time, reports problems, and never floods the authority."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import msgspec
import pytest

from sluice.core import StoreError
from sluice.core.home import Home
from sluice.gateway.acme.agent import PAUSE_SECONDS, AcmeAgent, lifetime_in_use, next_order, require_acme
from sluice.gateway.acme.schedule import failed, started, succeeded
from sluice.gateway.acme.store import AcmeStore, settings_digest
from sluice.gateway.config import AcmeConfig, GatewayConfig
from sluice.gateway.errors import AcmeError
from tests.public_authority import DAY, PublicAuthority

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
NAMES = ("sluice.example.com",)
CONFIG = AcmeConfig(directory="https://acme.test/dir", terms_of_service_agreed=True)


class Bench:
    """An agent with a clock that the test advances and attempts whose outcomes the test decides."""

    def __init__(self, directory: Path) -> None:
        self.home = Home.at(directory)
        self.store = AcmeStore(self.home)
        self.now, self.monotonic = NOW, 0.0
        self.reported: list[str] = []
        self.attempts = 0
        self.problem = ""
        self.keeps = True
        self.authority = PublicAuthority(NOW - DAY)
        self.agent = self.restarted()

    def restarted(self) -> AcmeAgent:
        return AcmeAgent(
            self.home,
            CONFIG,
            NAMES,
            self.reported.append,
            attempt=self.attempt,
            clock=lambda: self.now,
            monotonic=lambda: self.monotonic,
        )

    async def attempt(self) -> str:
        self.attempts += 1
        if not self.keeps:
            return "cannot write: the disk is full"
        state = started(self.store.state(), settings_digest(CONFIG, NAMES), self.now, 0.0)
        if self.problem:
            self.store.save_state(failed(state, self.problem, None, self.now))
        else:
            self.issue()
            self.store.save_state(succeeded(state, CONFIG.directory, self.now))
        return self.problem

    def issue(self, *names: str, lifetime: dt.timedelta = 90 * DAY) -> None:
        issued = self.authority.issue(*(names or NAMES), begin=self.now, lifetime=lifetime)
        with self.store.ordering():
            self.store.activate(self.store.stage(issued.chain_pem, issued.key))

    def later(self, by: dt.timedelta) -> None:
        self.now += by
        self.monotonic += by.total_seconds()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "home")


async def test_first_certificate_is_ordered_immediately_and_the_next_when_due(bench: Bench) -> None:
    await bench.agent.check()
    await bench.agent.check()
    assert (bench.attempts, bench.reported[-1]) == (1, "")
    bench.later(59 * DAY)
    await bench.agent.check()
    assert bench.attempts == 1
    bench.later(5 * DAY)
    await bench.agent.check()
    assert bench.attempts == 2


async def test_failed_order_is_reported_and_retried_after_the_pause(bench: Bench) -> None:
    bench.problem = "the ACME server refuses: rateLimited"
    await bench.agent.check()
    assert (bench.attempts, bench.reported[-1]) == (1, bench.problem)
    bench.later(dt.timedelta(seconds=PAUSE_SECONDS + 1))
    await bench.agent.check()
    assert (bench.attempts, bench.reported[-1]) == (1, bench.problem)
    bench.problem = ""
    bench.later(dt.timedelta(minutes=15))
    await bench.agent.check()
    assert (bench.attempts, bench.reported[-1]) == (2, "")


async def test_restarts_do_not_shorten_the_pause(bench: Bench) -> None:
    bench.problem = "no answer"
    for _ in range(20):
        await bench.restarted().check()
        bench.later(dt.timedelta(seconds=30))
    assert bench.attempts == 1


async def test_an_attempt_whose_result_cannot_be_stored_is_not_repeated_immediately(bench: Bench) -> None:
    bench.keeps = False
    for _ in range(60):
        await bench.agent.check()
        bench.later(dt.timedelta(seconds=5))
    assert bench.attempts == 1
    bench.later(dt.timedelta(seconds=5))
    await bench.agent.check()
    assert bench.attempts == 2


async def test_changed_server_names_make_an_order_due_immediately(bench: Bench) -> None:
    await bench.agent.check()
    names = (*NAMES, "new.example.com")
    assert not next_order(bench.home, CONFIG, NAMES, bench.now).is_due(bench.now)
    assert next_order(bench.home, CONFIG, names, bench.now).is_due(bench.now)


def test_expired_damaged_and_missing_certificates_do_not_count(bench: Bench) -> None:
    assert lifetime_in_use(bench.home, NAMES, NOW) is None
    bench.issue(lifetime=DAY)
    found = lifetime_in_use(bench.home, NAMES, NOW)
    assert found is not None
    assert (found.begin, found.end) == (NOW, NOW + DAY)
    assert lifetime_in_use(bench.home, NAMES, NOW + 2 * DAY) is None
    (bench.store.live / "fullchain.pem").write_bytes(b"")
    assert lifetime_in_use(bench.home, NAMES, NOW) is None


def test_damaged_renewal_state_counts_as_fresh(bench: Bench) -> None:
    bench.store.save_state(started(bench.store.state(), "a", NOW, 0.0))
    (bench.store.directory / "state.json").write_bytes(b"\xff{")
    assert bench.store.state().failures == 0


def test_only_one_process_orders(bench: Bench) -> None:
    with bench.store.ordering(), pytest.raises(AcmeError, match="another process"), AcmeStore(bench.home).ordering():
        pass


def test_a_missing_acme_table_is_an_error() -> None:
    with pytest.raises(AcmeError, match=r"\[gateway.acme\] is not configured"):
        require_acme(None)
    assert require_acme(CONFIG) is CONFIG


def test_the_latest_two_certificates_are_kept_with_private_key_files(bench: Bench) -> None:
    for _ in range(4):
        bench.issue()
    places = sorted(each.name for each in (bench.store.directory / "certificates").iterdir())
    assert places == ["000003", "000004"]
    assert bench.store.live.resolve().name == "000004"
    modes = {each.stat().st_mode & 0o777 for each in bench.store.directory.rglob("privkey.pem")}
    assert modes == {0o600}


def test_account_key_is_created_once_per_acme_server(bench: Bench) -> None:
    first = bench.store.account_key("https://a.test/dir").private_numbers()  # type: ignore[union-attr]
    assert bench.store.account_key("https://a.test/dir").private_numbers() == first  # type: ignore[union-attr]
    assert bench.store.account_key("https://b.test/dir").private_numbers() != first  # type: ignore[union-attr]


def test_damaged_account_key_is_an_error_and_not_replaced(bench: Bench) -> None:
    bench.store.account_key("https://a.test/dir")
    (path,) = bench.store.directory.rglob("key.pem")
    path.write_bytes(b"damaged")
    with pytest.raises(StoreError):
        bench.store.account_key("https://a.test/dir")
    assert path.read_bytes() == b"damaged"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        pytest.param({"certificate_file": "/c", "key_file": "/k"}, "exclude each other", id="files as well"),
        pytest.param({"envoys": 2}, "one Envoy", id="several Envoys"),
        pytest.param({"server_names": ("*.example.com",)}, "plain DNS names", id="wildcard"),
        pytest.param({"server_names": ()}, "needs server_names", id="no names"),
        pytest.param({"server_names": tuple(f"n{n}.example.com" for n in range(33))}, "more than 32", id="names"),
        pytest.param({"port": 80}, "another port", id="port with TLS"),
    ],
)
def test_gateway_settings_that_conflict_with_acme_are_refused(settings: dict[str, object], told: str) -> None:
    acme = {"directory": "https://acme.test/dir", "terms_of_service_agreed": True, "challenge": "http-01"}
    with pytest.raises(msgspec.ValidationError, match=told):
        msgspec.convert({"server_names": NAMES, "acme": acme, **settings}, GatewayConfig)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        pytest.param({"terms_of_service_agreed": False}, "terms_of_service_agreed must be true", id="terms"),
        pytest.param({"directory": "http://acme.test/dir"}, "must be a URL as in https", id="no TLS"),
        pytest.param({"directory": "https://user:pw@acme.test/dir"}, "must be a URL as in https", id="password"),
        pytest.param({"eab_key_id": "kid"}, "belong together", id="half a binding"),
        pytest.param({"eab_key_id": "kid", "eab_key_file": "relative"}, "absolute path", id="relative"),
        pytest.param({"ca_file": "relative"}, "absolute path", id="relative authority"),
        pytest.param({"email": "ops@example.com, root@example.com"}, "one address", id="two addresses"),
        pytest.param({"email": "ops@example.com?x=1"}, "one address", id="header fields"),
        pytest.param({"challenge": "dns-01"}, "Invalid enum value", id="unknown challenge"),
        pytest.param({"http_port": 0}, "1 to 65535", id="any port"),
        pytest.param({"eab_key": "secret"}, "unknown field", id="key in the configuration"),
    ],
)
def test_invalid_acme_settings_are_refused(settings: dict[str, object], told: str) -> None:
    values = {"directory": "https://acme.test/dir", "terms_of_service_agreed": True, **settings}
    with pytest.raises(msgspec.ValidationError, match=told):
        msgspec.convert(values, AcmeConfig)
