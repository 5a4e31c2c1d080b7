"""Run librdkafka's mock broker in plaintext; the test puts a TLS listener in front of it.

Needs the Python in build/programs/kafka. Prints the broker's port, and runs until standard input is closed.
"""

from __future__ import annotations

import sys

from confluent_kafka import Producer  # type: ignore[import-not-found]  # installed in build/programs/kafka only

producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
(broker,) = producer.list_topics(timeout=30).brokers.values()
sys.stdout.write(f"{broker.port}\n")
sys.stdout.flush()
sys.stdin.read()
