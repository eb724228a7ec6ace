"""What idle groups cost: many groups, members that only heartbeat, and the broker's CPU and memory meanwhile.

    python -m benchmarks.groups [--against kafka] [--groups 1000] [--members 5] [--interval 3] [--seconds 30]

Every member has its own connection, as real ones do. All of them live in one asyncio process whose own cost is not
counted: only the broker's, from /proc. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import time
from struct import Struct
from typing import Any

from benchmarks.kafka_server import ApacheKafka
from benchmarks.ottla_server import Ottla
from benchmarks.processes import BrokerProcess, cpu_seconds, memory_mb
from ottla.testing.raw import read_answer, request_bytes
from ottla.wire import Message
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.heartbeat import HeartbeatRequest
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

_SIZE = Struct(">i")
_REBALANCE_IN_PROGRESS, _MEMBER_ID_REQUIRED = 27, 79


class Member:
    """One member of one group, on its own connection."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.member_id = ""
        self.generation = -1
        self.latencies: list[float] = []
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def ask(self, request: Message, version: int) -> Any:
        frame = request_bytes(request, version, 1, "bench")
        self._writer.write(_SIZE.pack(len(frame)) + frame)
        (size,) = _SIZE.unpack(await self._reader.readexactly(4))
        return read_answer(await self._reader.readexactly(size), request.API_KEY, version, 1)

    async def connect(self, port: int) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)

    async def join(self) -> None:
        """Join and sync until the group is stable; the leader gives everybody an empty assignment."""
        while True:
            joined = await self.ask(
                JoinGroupRequest(
                    group_id=self.group, session_timeout=45_000, rebalance_timeout=60_000, member_id=self.member_id,
                    protocol_type="consumer", protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
                ), 5,
            )  # fmt: skip
            self.member_id = joined.member_id
            self.generation = joined.generation_id
            if joined.error_code == _MEMBER_ID_REQUIRED:
                continue
            members = joined.members
            synced = await self.ask(
                SyncGroupRequest(
                    group_id=self.group, generation_id=self.generation, member_id=self.member_id,
                    assignments=[SyncGroupRequestAssignment(member_id=m.member_id, assignment=b"x") for m in members],
                ), 3,
            )  # fmt: skip
            if synced.error_code == 0:
                return

    async def heartbeat(self) -> None:
        started = time.monotonic()
        request = HeartbeatRequest(group_id=self.group, generation_id=self.generation, member_id=self.member_id)
        beat = await self.ask(request, 3)
        self.latencies.append(time.monotonic() - started)
        if beat.error_code == _REBALANCE_IN_PROGRESS:
            await self.join()
        else:
            assert beat.error_code == 0, beat


async def _run(broker: BrokerProcess, groups: int, members: int, interval_s: float, seconds: float) -> dict[str, float]:
    everybody = [[Member(f"group-{number}") for _ in range(members)] for number in range(groups)]
    flat = [member for group in everybody for member in group]
    for start in range(0, len(flat), 200):
        await asyncio.gather(*(member.connect(broker.port) for member in flat[start : start + 200]))
    deadline = time.monotonic() + 60
    found: Any = None
    while time.monotonic() < deadline:
        found = await flat[0].ask(FindCoordinatorRequest(key="group-0"), 1)
        if found.error_code == 0:
            break
        await asyncio.sleep(0.5)
    joining = time.monotonic()
    await asyncio.gather(*(member.join() for member in flat))
    joined_s = time.monotonic() - joining

    async def beat(member: Member, offset: float, until: float) -> None:
        await asyncio.sleep(offset)
        while time.monotonic() < until:
            begin = time.monotonic()
            await member.heartbeat()
            await asyncio.sleep(max(interval_s - (time.monotonic() - begin), 0))

    async def run_for(period_s: float) -> None:
        until = time.monotonic() + period_s
        await asyncio.gather(*(beat(m, interval_s * n / len(flat), until) for n, m in enumerate(flat)))

    await run_for(2 * interval_s)  # everybody has settled, and is spread over the interval
    for member in flat:
        member.latencies.clear()
    before, started = cpu_seconds(broker.pid), time.monotonic()
    await run_for(seconds)
    took = time.monotonic() - started
    latencies = sorted(value for member in flat for value in member.latencies)
    cpu = cpu_seconds(broker.pid) - before
    return {
        "groups": groups, "members": len(flat), "interval_s": interval_s, "seconds": round(took, 1),
        "heartbeats": len(latencies), "join_all_s": round(joined_s, 2),
        "broker_cpu_percent": round(100 * cpu / took, 1),
        "cpu_us_per_heartbeat": round(1e6 * cpu / len(latencies), 1),
        "p50_ms": round(1000 * latencies[len(latencies) // 2], 2),
        "p99_ms": round(1000 * latencies[len(latencies) * 99 // 100], 2),
        "broker_rss_mb": round(memory_mb(broker.pid)[0], 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", choices=("ottla", "kafka"), default="ottla")
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--interval", type=float, default=3.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    args = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 2 * args.groups * args.members + 1000), hard), hard))
    broker: BrokerProcess = ApacheKafka() if args.against == "kafka" else Ottla()
    broker.start()
    try:
        figures = asyncio.run(_run(broker, args.groups, args.members, args.interval, args.seconds))
    finally:
        broker.stop()
    print(json.dumps({"broker": args.against, **figures}))


if __name__ == "__main__":
    main()
