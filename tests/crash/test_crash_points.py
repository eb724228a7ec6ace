"""A broker that dies between any two of its writes starts again, and has what it acknowledged.

A whole life (first start or recovery, topics, produces, rolls, clean stop) is run once under strace to learn which
calls it makes that change files. Then it is run again and again, and killed as it enters one of them.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from crash_campaign import Campaign, refusal_to_start
from storm import GIVE_UP_MS, create_topics, places, read_all, value_of

from campaign.checker import check
from campaign.faults import traced
from campaign.history import History, Send
from ottla.testing import BrokerProcess

pytestmark = [pytest.mark.crash, pytest.mark.broker, pytest.mark.client]

_CALLS = "rename,renameat,unlink,unlinkat,rmdir,mkdir,pwrite64,pwritev,write,fsync,fdatasync,ftruncate"
#: rolls every few batches
_TOPICS = {"life": {"segment.bytes": "4096", "index.interval.bytes": "100"}}
_PLACES = places(_TOPICS)
_RECORDS = 60


@pytest.mark.parametrize("before", ["nothing", "a-kill", pytest.param("a-clean-stop", marks=pytest.mark.long)])
def test_a_broker_may_die_before_any_of_its_writes(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    rng = campaign.rng
    broker = campaign.start()
    history = History()
    if before == "nothing":
        broker.kill()
        shutil.rmtree(broker.data)
    else:
        produce(broker, history, "before")
        assert (broker.kill if before == "a-kill" else broker.stop)() in (0, -9)
    template = campaign.directory / "template"
    if Path(broker.data).exists():
        shutil.copytree(broker.data, template)

    with traced(monkeypatch, campaign.directory, "--seccomp-bpf", "-e", f"trace={_CALLS}") as output:
        broker.launch()
        produce(broker, History(), "traced")
        assert broker.stop() == 0
    points = sorted(crash_points(output.read_text()))
    chosen = rng.sample(points, min(max(campaign.kills // 4, 1), len(points)))
    died = sum(die_at(campaign, monkeypatch, broker, template, history, call, number) for call, number in chosen)
    campaign.say(f"after {before}: {died} deaths at {len(chosen)} of {len(points)} places")


def crash_points(trace: str) -> set[tuple[str, int]]:
    """Each call with each of its numbers: strace counts by thread and by call."""
    counts: Counter[tuple[str, str]] = Counter()
    points = set()
    for thread, call in re.findall(r"^(\d+) +(\w+)\(", trace, re.MULTILINE):
        counts[thread, call] += 1
        points.add((call, counts[thread, call]))
    return points


def die_at(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch, broker: BrokerProcess, template: Path, before: History,
    call: str, number: int,
) -> bool:  # fmt: skip
    """One life that ends as it enters that call, and what must be there in the next."""
    shutil.rmtree(broker.data, ignore_errors=True)
    if template.exists():
        shutil.copytree(template, broker.data)
    history = History(sends=list(before.sends))
    where = f"{call} number {number}"
    with traced(
        monkeypatch, campaign.directory, "-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={number}"
    ):
        refusal = refusal_to_start(broker)
    assert not refusal or "exit code -9" in refusal, f"{where}: {refusal}"
    died = bool(refusal)
    if died:
        start_again(broker, where)
    died |= produce(broker, history, "dying")
    died |= broker.stop() == -9
    start_again(broker, where)
    history.final = read_all(broker.bootstrap, _PLACES)
    assert check(history) == {}, where
    assert broker.stop() == 0
    return died


def start_again(broker: BrokerProcess, where: str) -> None:
    refusal = refusal_to_start(broker)
    assert not refusal, f"does not start after it died at {where}: {refusal}"


def produce(broker: BrokerProcess, history: History, name: str) -> bool:
    """Records to every partition, in small batches; a broker that dies meanwhile is started again."""
    died = False
    producer = Producer({
        "bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "message.timeout.ms": GIVE_UP_MS,
        "batch.num.messages": 4, "linger.ms": 1, "retry.backoff.ms": 20, "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100, "log_level": 0,
    })  # fmt: skip
    while True:
        try:
            create_topics(broker.bootstrap, _TOPICS, timeout_s=1)
            break
        except KafkaException:
            died |= revive(broker)
    for number in range(_RECORDS):
        send = history.send(name, _PLACES[number % len(_PLACES)], f"{name}.{number}")

        def on_delivery(error: KafkaError | None, message: Message, send: Send = send) -> None:
            if error is None:
                send.acknowledged(message.offset() or 0)

        producer.produce(
            send.place.topic, value_of(send.value, 300), partition=send.place.partition, on_delivery=on_delivery
        )
    while producer.flush(0.1):
        died |= revive(broker)
    return died


def revive(broker: BrokerProcess) -> bool:
    if broker.running:
        return False
    broker.kill()
    broker.launch()
    return True
