"""A client that deletes a topic and creates it again with the same name, while the power of a broker fails.

A record of an earlier topic with this name may never be in the log of the current one, and nobody who asks for the
earlier topic, by its id, may get a record of the current one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sim_client import Client, Lost, batch, batches
from sim_host import BrokerHost
from sim_invariants import batches_of

from ottla.model.errors import ErrorCode
from ottla.model.records import iterate_records
from ottla.testing.raw import fetch_from, fetch_request, produce_request
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

if TYPE_CHECKING:
    from sim_world import World

_PRODUCE_V, _FETCH_V = 13, 13
#: a record is sent again until this time; then the topic is deleted
_PRODUCE_S = 4.0


class Recreator(Client):
    """Works on one topic name; no other client uses it."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._topic = f"{name}-again"
        self._numbers = 0
        self._exists = False
        #: the ids of the topics with this name, the current one last
        self._ids: list[bytes] = []
        #: offsets that acks=all acknowledged, with the values
        self._acknowledged: dict[int, str] = {}
        #: the broker that does not run while the topic is created again
        self._down: BrokerHost | None = None

    async def run(self) -> None:
        while not self.is_over:
            await self._create()
            await self._produce()
            await self._read_by_old_id()
            self._take_down()
            await self._delete()
            await self.pause(0.1)
            if self.rng.random() < 0.7:
                await self._create()
                await self._produce()
            self._let_up()
            if self._exists:
                await self._use()
                await self._delete()

    async def _use(self) -> None:
        """Write, and compare the replicas, while leaders change."""
        for _ in range(self.rng.randint(1, 4)):
            await self._produce()
            self._check_replicas()
            await self.pause(0.3)
            self._check_replicas()

    # -- the broker that is down ------------------------------------------------------------------------------------

    def _take_down(self) -> None:
        if self.rng.random() < 0.8:
            host = self.rng.choice(list(self.world.hosts.values()))
            if host.is_ready and self.world.faults.keep_down(host, self.rng.choice(("process", "power", "power"))):
                self._down = host

    def _let_up(self) -> None:
        if self._down is not None:
            self.world.faults.let_up(self._down)
            self._down = None

    # -- the topic --------------------------------------------------------------------------------------------------

    async def _create(self) -> None:
        if self._exists:
            return
        self._exists = True
        topic = CreatableTopic(
            name=self._topic, num_partitions=1, replication_factor=self.world.replication_factor
        )  # fmt: skip
        while True:
            try:
                (made,) = (await self.ask(CreateTopicsRequest(topics=[topic], timeout=3000), 7)).topics
                if made.error_code in (0, ErrorCode.TOPIC_ALREADY_EXISTS):
                    found = await self._find()
                    if found is not None and found.topic_id not in self._ids:
                        self._ids.append(found.topic_id)
                        return
            except Lost:
                pass
            await self.pause(0.1)

    async def _delete(self) -> None:
        await self.delete_topic(self._topic)
        self._acknowledged.clear()
        self._exists = False

    async def _find(self) -> Any:
        """Return the metadata of the topic as a broker knows it; None if it does not exist there."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=self._topic)], allow_auto_topic_creation=False)
        try:
            (found,) = (await self.ask(request, 12)).topics
        finally:
            self._try_another_contact()
        return None if found.error_code or not found.partitions else found

    # -- records ----------------------------------------------------------------------------------------------------

    async def _produce(self) -> None:
        """Send some records to the current topic; a record that is not acknowledged may be there or not."""
        until = self.world.loop.time() + _PRODUCE_S
        topic_id = self._ids[-1]
        for _ in range(self.rng.randint(1, 8)):
            self._numbers += 1
            value = f"{topic_id.hex()}-{self._numbers}"
            content = batch([value], self.world.now_ms())
            while self.world.loop.time() < until:
                try:
                    found = await self._find()
                    leader = -1 if found is None or found.topic_id != topic_id else found.partitions[0].leader_id
                    if leader in self.world.hosts:
                        request = produce_request((topic_id, 0, content), acks=-1, timeout_ms=1000)
                        row: Any = (await self.ask(request, _PRODUCE_V, broker=leader)).responses[0]
                        if not row.partition_responses[0].error_code:
                            self._acknowledged[row.partition_responses[0].base_offset] = value
                            break
                except Lost:
                    pass
                await self.pause(0.1)
        self._check_replicas()

    async def _read_by_old_id(self) -> None:
        """A reader that knows an earlier topic gets no record of the current one."""
        if len(self._ids) < 2:
            return
        old = self.rng.choice(self._ids[:-1])
        request = fetch_request({old: [fetch_from(0, 0)]}, max_wait=100)
        try:
            reply = await self.ask(request, _FETCH_V, broker=self.rng.choice(list(self.world.hosts)))
        except Lost:
            return
        for topic in reply.responses:
            for row in topic.partitions:
                for _, content in batches(bytes(row.records or b"")):
                    self._check_values("a reader", old, content)

    def _check_values(self, where: str, topic_id: bytes, content: bytes) -> None:
        for record in iterate_records(content):
            value = (record.value or b"").rstrip(b".").decode()
            if not value.startswith(topic_id.hex()):
                line = f"{self._topic}: {where} has {value} at offset {record.offset} of {topic_id.hex()}"
                self.world.violation("record-of-another-topic", line)

    def _check_replicas(self) -> None:
        """Compare the logs of all replicas of the current topic with what was acknowledged."""
        replication: Any = self.world.replication
        topic = replication.store.view.topics.get(self._topic)
        if topic is None or topic.topic_id != self._ids[-1]:
            return
        state = topic.partitions[0]
        unclean = {end.broker for end in state.unclean}
        for number, host in self.world.hosts.items():
            partition = host.broker.replicas.find(self._topic, 0) if host.is_ready and host.broker is not None else None
            if partition is None or partition.topic_id != topic.topic_id or partition.offline:
                continue
            values: dict[int, str] = {}
            for _, content in batches_of(partition.log):
                self._check_values(host.name, topic.topic_id, content)
                values |= {each.offset: (each.value or b"").rstrip(b".").decode() for each in iterate_records(content)}
            if number in (*state.isr, *state.elr) and number not in unclean:
                # What is not written to the files yet is not compared.
                missing = [
                    offset for offset, value in self._acknowledged.items()
                    if offset < partition.log.written_end_offset and values.get(offset) != value
                ]  # fmt: skip
                missing += [offset for offset in self._acknowledged if offset >= partition.log.log_end_offset]
                if missing:
                    line = f"{self._topic}: {host.name} lacks {missing[:3]}, ISR {state.isr}, ELR {state.elr}"
                    self.world.violation("recreated-topic-lacks-acknowledged", line)
