"""The scenarios of the chaos tests kill every kind of process."""

from __future__ import annotations

import pytest

from tests.chaos.processes.story import ON_ONE_MACHINE, WITH_AN_ENSEMBLE, Kind, runs_of_a_deck, story


@pytest.mark.parametrize("kinds", [ON_ONE_MACHINE, WITH_AN_ENSEMBLE], ids=["one-machine", "ensemble"])
@pytest.mark.parametrize("deaths", [1, 4, 6, 40])
def test_consecutive_seeds_kill_every_kind_of_process(deaths: int, kinds: tuple[Kind, ...]) -> None:
    runs = runs_of_a_deck(deaths, kinds)
    for deck in range(4):
        told = [story("batch", 1 + deck * runs + turn, deaths, kinds) for turn in range(runs)]
        assert {death.kind for each in told for death in each} == set(kinds)
        assert all(len(each) == deaths for each in told)


def test_only_stories_of_the_first_deck_have_no_hasty_death() -> None:
    runs = runs_of_a_deck(6)
    patient = [story("batch", seed, 6) for seed in range(1, runs + 1)]
    assert not any(death.hasty for each in patient for death in each)
    later = [death.hasty for seed in range(runs + 1, 5 * runs) for death in story("batch", seed, 6)]
    assert any(later)
    assert not all(later)


def test_a_seed_always_gives_the_same_story() -> None:
    assert story("batch", 5, 6) == story("batch", 5, 6) != story("stream", 5, 6)
    assert set(ON_ONE_MACHINE) | set(WITH_AN_ENSEMBLE) == set(Kind)
