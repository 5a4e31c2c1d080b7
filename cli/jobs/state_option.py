"""``--state`` of ``sluice jobs list``."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.cli.errors import UsageError


def wanted_states(given: Sequence[str]) -> frozenset[str]:
    """Parse states; empty: all. Raises :class:`UsageError` for an unknown one."""
    from sluice.runtime import JobState  # late: it imports all messages about jobs

    groups = {"ACTIVE": [each for each in JobState if not each.terminal]}
    groups["ENDED"] = [each for each in JobState if each.terminal]
    groups |= {each.value: [each] for each in JobState}
    unknown = [each for each in given if each.upper() not in groups]
    if unknown:
        raise UsageError(
            f"--state {unknown[0]!r} is not a state of a job", f"one of active, ended, {', '.join(JobState)}"
        )
    return frozenset(state.value for each in given for state in groups[each.upper()])
