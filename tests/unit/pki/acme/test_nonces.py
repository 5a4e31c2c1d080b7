"""Nonces: usable once within ten minutes, with bounded memory."""

from __future__ import annotations

import pytest

from sluice.pki.acme.nonces import LIFETIME_SECONDS, Nonces
from sluice.pki.acme.problems import AcmeProblem, ProblemType


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_nonce_can_be_used_only_once() -> None:
    nonces = Nonces(Clock())
    nonce = nonces.make()
    nonces.use(nonce)
    with pytest.raises(AcmeProblem) as caught:
        nonces.use(nonce)
    assert caught.value.kind is ProblemType.BAD_NONCE


def test_an_expired_nonce_is_refused_whether_it_was_used_or_not() -> None:
    clock = Clock()
    nonces = Nonces(clock)
    used, unused = nonces.make(), nonces.make()
    nonces.use(used)
    clock.now += LIFETIME_SECONDS + 1
    nonces.use(nonces.make())
    for nonce in (used, unused):
        with pytest.raises(AcmeProblem):
            nonces.use(nonce)


@pytest.mark.parametrize("nonce", ["", "x", "AAAA", "é", "A" * 54, "A" * 10_000])
def test_a_malformed_nonce_is_refused(nonce: str) -> None:
    with pytest.raises(AcmeProblem):
        Nonces(Clock()).use(nonce)


def test_another_servers_nonce_is_refused() -> None:
    with pytest.raises(AcmeProblem):
        Nonces(Clock()).use(Nonces(Clock()).make())


def test_used_nonces_are_still_refused_after_the_memory_for_them_is_full() -> None:
    nonces = Nonces(Clock(), max_used=3)
    spent = [nonces.make() for _ in range(3)]
    outstanding = nonces.make()
    for nonce in spent:
        nonces.use(nonce)
    nonces.use(outstanding)
    for nonce in (*spent, outstanding):
        with pytest.raises(AcmeProblem):
            nonces.use(nonce)
    nonces.use(nonces.make())
