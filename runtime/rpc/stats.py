"""Statistics of endpoints: how full their mailboxes are, and how long messages take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sluice.core import Sample


@dataclass(frozen=True, slots=True)
class EndpointStats:
    """The statistics of one endpoint at one moment.

    Attributes:
        name: name of the endpoint.
        depth: number of waiting messages.
        deepest: largest number of messages that ever waited.
        capacity: number of waiting messages at which further ones are refused.
        processed: messages run so far.
        refused: messages refused because the mailbox was full.
        failures: errors that no caller waited for.
        busy_seconds: time on the main thread so far, including waiting inside handlers.
        longest_seconds: duration of the slowest message.
    """

    name: str
    depth: int
    deepest: int
    capacity: int
    processed: int
    refused: int
    failures: int
    busy_seconds: float
    longest_seconds: float


def samples_of(endpoints: Iterable[EndpointStats]) -> Iterator[Sample]:
    """Yield the statistics as metrics."""
    for each in endpoints:
        label = {"endpoint": each.name}
        yield Sample("sluice_rpc_mailbox_depth", "gauge", "Messages that wait in a mailbox.", each.depth, label)
        yield Sample("sluice_rpc_mailbox_deepest", "gauge", "Most messages that waited.", each.deepest, label)
        yield Sample("sluice_rpc_messages_total", "counter", "Messages run.", each.processed, label)
        yield Sample("sluice_rpc_refused_total", "counter", "Messages refused by a full mailbox.", each.refused, label)
        yield Sample("sluice_rpc_failures_total", "counter", "Errors no caller waited for.", each.failures, label)
        yield Sample(
            "sluice_rpc_processing_seconds_total", "counter", "Time on the main thread.", each.busy_seconds, label
        )
        yield Sample("sluice_rpc_processing_longest_seconds", "gauge", "Slowest message.", each.longest_seconds, label)
