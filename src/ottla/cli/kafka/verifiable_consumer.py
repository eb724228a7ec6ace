"""kafka-verifiable-consumer: read a topic as a member of a group, and print what happens as lines of JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ottla.cli.kafka.arguments import Given, Syntax, argument
from ottla.cli.kafka.arguments import main as run_main
from ottla.cli.kafka.clients import make_consumer
from ottla.cli.kafka.connection import properties_of
from ottla.cli.kafka.errors import ToolError
from ottla.cli.kafka.verifiable import Stop, config_file, connection_arguments, event
from ottla.cli.records import Consumer, KafkaException, offsets_to_commit

_POLL_S: Final = 0.1
#: records of one poll, as with Java's consumer
_BATCH: Final = 500
_PROTOCOLS: Final = ("classic", "consumer")
SYNTAX: Final = Syntax(
    name="verifiable-consumer",
    summary="Read a topic as a member of a group, and print what happens as lines of JSON.",
    arguments=(
        argument("--topic", metavar="TOPIC", is_required=True, help="The topic."),
        argument("--group-protocol", metavar="PROTOCOL", default="classic", help="classic or consumer."),
        argument("--group-remote-assignor", metavar="NAME", help="Assignor of the protocol consumer."),
        argument("--group-id", metavar="GROUP", is_required=True, help="The group."),
        argument("--group-instance-id", metavar="ID", help="Id of a static member."),
        argument("--max-messages", metavar="N", parse=int, default=-1, help="How many; -1: until the tool is stopped."),
        argument("--session-timeout", metavar="MS", parse=int, help="Session timeout, with the protocol classic."),
        argument("--verbose", help="Print each record."),
        argument("--enable-autocommit", help="Let the client commit offsets."),
        argument("--reset-policy", metavar="POLICY", default="earliest", help="earliest, latest or none."),
        argument(
            "--assignment-strategy", metavar="CLASS", default="org.apache.kafka.clients.consumer.RangeAssignor",
            help="Assignor of the protocol classic.",
        ),
        *connection_arguments("consumer"),
    ),
)  # fmt: skip


def main(words: Sequence[str]) -> int:
    """Run the tool and return its exit code."""
    return run_main(SYNTAX, words, _run, is_helped_without_arguments=True)


def _run(given: Given) -> None:
    protocol = str(given["group-protocol"]).lower()
    if protocol not in _PROTOCOLS:
        raise ToolError(f"--group-protocol {given['group-protocol']}: expected one of {', '.join(_PROTOCOLS)}")
    properties = properties_of(config_file(given, "consumer"))
    properties |= {
        "group.id": given["group-id"],
        "group.protocol": protocol,
        "enable.auto.commit": str(given.has("enable-autocommit")).lower(),
        "auto.offset.reset": given["reset-policy"],
    }
    if given["group-instance-id"] is not None:
        properties["group.instance.id"] = given["group-instance-id"]
    if protocol == "classic":
        properties["partition.assignment.strategy"] = given["assignment-strategy"]
        if given["session-timeout"] is not None:
            properties["session.timeout.ms"] = str(given["session-timeout"])
    elif given["group-remote-assignor"] is not None:
        properties["group.remote.assignor"] = given["group-remote-assignor"]
    Reader(make_consumer(given["bootstrap-server"], properties), given).run()


class Reader:
    """Reads records, commits their offsets, and prints both."""

    def __init__(self, consumer: Consumer, given: Given) -> None:
        self._consumer = consumer
        self._given = given
        self._is_manual = not given.has("enable-autocommit")
        self._count = 0

    def run(self) -> None:
        stop, limit = Stop(), self._given["max-messages"]
        event("startup_complete")
        try:
            self._consumer.subscribe([self._given["topic"]], on_assign=_assigned, on_revoke=_revoked)
            while not stop.is_asked and not 0 <= limit <= self._count:
                messages = self._consumer.consume(_BATCH, _POLL_S)
                for error in filter(None, (each.error() for each in messages)):
                    if error.fatal():
                        raise ToolError(error.str())
                found = [each for each in messages if each.error() is None]
                if found:
                    self._note(found, len(found) if limit < 0 else limit - self._count)
        except KafkaException as error:
            raise ToolError(error.args[0].str()) from None
        finally:
            if stop.is_asked:
                event("shutdown_requested")
            self._consumer.close()
            event("shutdown_complete")
        if not stop.is_asked:
            # Java's tool reports it when its process ends.
            event("shutdown_requested")

    def _note(self, messages: Sequence[Any], limit: int) -> None:
        kept = messages[:limit]
        self._count += len(kept)
        offsets: dict[tuple[str, int], list[int]] = {}
        for each in kept:
            offsets.setdefault((each.topic(), each.partition()), []).append(each.offset())
            if self._given.has("verbose"):
                event(
                    "record_data", key=_text(each.key()), value=_text(each.value()), topic=each.topic(),
                    partition=each.partition(), offset=each.offset(),
                )  # fmt: skip
        partitions = [
            {"topic": topic, "partition": number, "count": len(rows), "minOffset": min(rows), "maxOffset": max(rows)}
            for (topic, number), rows in offsets.items()
        ]
        # Java counts the records of the poll, also those beyond --max-messages.
        event("records_consumed", count=len(messages), partitions=partitions)
        if self._is_manual:
            self._commit({name: rows[-1] + 1 for name, rows in offsets.items()})

    def _commit(self, offsets: dict[tuple[str, int], int]) -> None:
        rows = [{"topic": topic, "partition": number, "offset": at} for (topic, number), at in offsets.items()]
        try:
            self._consumer.commit(offsets=offsets_to_commit(offsets), asynchronous=False)
        except KafkaException as error:
            event("offsets_committed", offsets=rows, success=False, error=error.args[0].str())
            return
        event("offsets_committed", offsets=rows, success=True)


def _assigned(_: Any, partitions: Sequence[Any]) -> None:
    event("partitions_assigned", partitions=_names(partitions))


def _revoked(_: Any, partitions: Sequence[Any]) -> None:
    event("partitions_revoked", partitions=_names(partitions))


def _names(partitions: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"topic": each.topic, "partition": each.partition} for each in partitions]


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")
