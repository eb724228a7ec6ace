"""A well-behaved client in a process of its own that measures how long it waits for each answer.

``python -m tests.hostile.bystander ADDRESS PID`` prints "ready" after its first round of requests. When a line arrives
on standard input it finishes the round that is under way, does one more, and prints its figures as JSON.

Next to the latency it measures how much CPU time the broker's event loop used meanwhile (PID is the broker's). On a
busy machine the latency says little, but the CPU time still says how long the loop was blocked.
"""

from __future__ import annotations

import json
import select
import sys
import time
from pathlib import Path
from typing import Any

from ottla.testing.raw import RawClient, batch_of, fetch_from, fetch_request, produce_request
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

_TOPIC = "bystander"
_TIMEOUT_S = 90.0
#: a client with a moderate load; without a pause the bystander alone would keep the broker busy
_PAUSE_S = 0.002


class Bystander:
    """One connection that produces a record, fetches it and asks for metadata, and knows its worst latency."""

    def __init__(self, client: Any, broker_pid: int) -> None:
        self._client = client
        self._schedstat = Path(f"/proc/{broker_pid}/task/{broker_pid}/schedstat")
        self._batch = batch_of(b"value")
        self.rounds = 0
        self.requests = 0
        self.worst_ms = 0.0
        self.worst_api = ""
        self.worst_cpu_ms = 0.0

    def create_topic(self) -> None:
        names = [topic.name for topic in self._client.ask(MetadataRequest(topics=None), 9).topics]
        if _TOPIC not in names:
            self._client.create_topic(_TOPIC)

    def play_round(self) -> None:
        (topic,) = self.timed("Produce", produce_request((_TOPIC, 0, self._batch)), 9).responses
        (row,) = topic.partition_responses
        assert row.error_code == 0, row
        (topic,) = self.timed("Fetch", fetch_request({_TOPIC: [fetch_from(0, row.base_offset)]}), 11).responses
        assert topic.partitions[0].records.endswith(b"value\0")
        request = MetadataRequest(topics=[MetadataRequestTopic(name=_TOPIC)], allow_auto_topic_creation=False)
        (found,) = self.timed("Metadata", request, 9).topics
        assert found.error_code == 0, found
        self.rounds += 1

    def forget(self) -> None:
        self.rounds = self.requests = 0
        self.worst_ms = self.worst_cpu_ms = 0.0

    def timed(self, api: str, request: Any, version: int) -> Any:
        """Return the answer to a request, and count the time that it took."""
        cpu_ms, started = self._broker_cpu_ms(), time.monotonic()
        answer = self._client.ask(request, version)
        took_ms = (time.monotonic() - started) * 1000
        self.worst_cpu_ms = max(self.worst_cpu_ms, self._broker_cpu_ms() - cpu_ms)
        self.requests += 1
        if took_ms > self.worst_ms:
            self.worst_ms, self.worst_api = took_ms, api
        return answer

    def _broker_cpu_ms(self) -> float:
        return int(self._schedstat.read_text().split()[0]) / 1e6


def main(address: str, broker_pid: int) -> None:
    bystander = Bystander(RawClient(address, client_id="bystander", timeout_s=_TIMEOUT_S), broker_pid)
    bystander.create_topic()
    bystander.play_round()
    bystander.forget()
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], _PAUSE_S)[0]:
        bystander.play_round()
    bystander.play_round()
    figures = {
        name: getattr(bystander, name) for name in ("rounds", "requests", "worst_ms", "worst_api", "worst_cpu_ms")
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
