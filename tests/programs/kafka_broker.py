"""librdkafka's own mock broker, run by the Python that has it: plaintext, for whoever stands in front of it.

Prints its port and lives until its standard input ends.
"""

from __future__ import annotations

import sys

from confluent_kafka import Producer  # type: ignore[import-not-found]  # installed in build/programs/kafka only

producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
(broker,) = producer.list_topics(timeout=30).brokers.values()
sys.stdout.write(f"{broker.port}\n")
sys.stdout.flush()
sys.stdin.read()
