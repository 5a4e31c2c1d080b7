"""Invalid queues are refused when the configuration is read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sluice.runtime.scheduling_config import MAX_QUEUES, SchedulingConfig


@pytest.mark.parametrize(
    ("config", "why"),
    [
        pytest.param({"queues": [{"name": "a"}, {"name": "a"}]}, "same name", id="same-name"),
        pytest.param({"queues": [{"name": "others"}]}, "choose another name", id="name-of-the-rest"),
        pytest.param({"queues": [{"name": "Größe"}]}, "not a valid queue name", id="no-name"),
        pytest.param({"queues": [{"name": "a" * 33}]}, "not a valid queue name", id="long-name"),
        pytest.param({"queues": [{"name": "a", "guaranteed": 0.5, "maximum": 0.4}]}, "more than maximum", id="maximum"),
        pytest.param(
            {"queues": [{"name": "a", "guaranteed": 0.6}, {"name": "b", "guaranteed": 0.6}]},
            "more than the whole",
            id="more-than-all",
        ),
        pytest.param({"queues": [{"name": f"q{i}"} for i in range(MAX_QUEUES + 1)]}, "at most", id="too-many"),
        pytest.param({"queues": [{"name": "a", "weight": float("nan")}]}, "weight", id="nan"),
        pytest.param({"queues": [{"name": "a", "weight": 0}]}, "weight", id="no-weight"),
        pytest.param({"max_slots_per_group": {"g": 1}}, "needs queues", id="groups-without-queues"),
        pytest.param({"preemption_grace": -1}, "preemption_grace", id="negative-grace"),
        pytest.param({"preemption_wait": float("nan")}, "preemption_wait", id="nan-wait"),
    ],
)
def test_an_invalid_scheduling_configuration_is_refused(config: dict[str, Any], why: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=why):
        msgspec.convert(config, SchedulingConfig)


def test_preemption_requires_a_queue_with_a_guarantee_or_priorities() -> None:
    def preempts(**queue: object) -> bool:
        return msgspec.convert({"queues": [{"name": "a", **queue}]}, SchedulingConfig).preempts

    assert preempts(guaranteed=0.1)
    assert preempts(max_priority=1)
    assert not preempts(weight=9)
    assert not SchedulingConfig().preempts
