"""`ottla rest`: makes the app of the proxy and runs it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp

from ottla.client.logins import check_login
from ottla.edge.rest.consumers import Instances
from ottla.edge.rest.endpoints import served
from ottla.edge.rest.errors import describe_error
from ottla.edge.rest.kafka import Kafka
from ottla.edge.rest.limits import ByteRates
from ottla.edge.rest.producing import DataEncoder
from ottla.edge.rest.proxy import INT32, Proxy
from ottla.edge.rest.reachability import Reachability
from ottla.edge.rest.schema_data import SchemaData, open_registry
from ottla.edge.rest.settings import RestSettings
from ottla.edge.rest.v2_consumers import ConsumerRoutesV2
from ottla.edge.rest.v2_media import CONSUMER_TYPES
from ottla.edge.rest.v2_topics import TopicRoutesV2
from ottla.edge.rest.v3_acls import AclRoutes
from ottla.edge.rest.v3_configs import ConfigRoutes
from ottla.edge.rest.v3_groups import GroupRoutes
from ottla.edge.rest.v3_produce import ProduceRoutes
from ottla.edge.rest.v3_read import ReadRoutes
from ottla.edge.rest.v3_topics import TopicRoutes
from ottla.edge.rest.writable_topics import Topics
from ottla.edge.web.app import HttpError, Operation, Parameter
from ottla.edge.web.service import Service, run_service
from ottla.env.tasks import Tasks, attempt

_CLEAN_UP_S: Final = 1.0
#: a name in a longer path could be longer than a string of Kafka's protocol
_PATH_BYTES_MAX: Final = 16 << 10
#: the variable segments of paths
PARAMETERS: Final = (
    Parameter("cluster_id", "Id of the cluster; GET /v3/clusters returns it."),
    Parameter("topic_name", "Name of a topic."),
    Parameter("partition_id", "Number of a partition.", INT32),
    Parameter("broker_id", "Id of a broker.", INT32),
    Parameter("name", "Name of a config."),
    Parameter("consumer_group_id", "Id of a consumer group."),
    Parameter("consumer_id", "Id of a member of a consumer group."),
    Parameter("group", "Id of a consumer group."),
    Parameter("instance", "Name of a consumer instance: instance_id of its creation."),
)


def run(texts: Mapping[str, str]) -> int:
    """Run the proxy until it is stopped. Return the exit code."""
    return run_service("rest", RestSettings.parse, texts, start, check_login)


@asynccontextmanager
async def start(service: Service[RestSettings]) -> AsyncIterator[ASGIApp]:
    """Make the app. The cluster need not be reachable: requests then get error 50302, and `/health` says so."""
    kafka = Kafka(service.settings)
    proxy = Proxy(service.settings, kafka, service.listeners[0])
    instances = Instances(service.settings, kafka)
    reading = ReadRoutes(proxy)
    byte_rates = ByteRates(service.settings)
    topics = Topics(kafka)
    schemas = open_registry(service.settings, kafka.run, topics.may_write)

    async def end_streams() -> None:
        reading.is_stopping = True

    service.before_stop(end_streams)
    tasks = Tasks()
    tasks.keep(partial(_clean_up, kafka, instances), "close idle clients")
    reachability = Reachability(kafka)
    # Before the service is ready, so that a wrong address is reported first.
    await reachability.ask()
    tasks.keep(reachability.watch, "ask whether the cluster answers")
    try:
        yield service.make_app(
            byte_rates.apply(operations(proxy, instances, reading, topics, schemas)), title="Ottla REST proxy",
            error_response=error_response, describe_error=describe_error,
            parameters=PARAMETERS, path_bytes_max=_PATH_BYTES_MAX, error_media_types=CONSUMER_TYPES,
            health=reachability.health,
        )  # fmt: skip
    finally:
        await tasks.stop()
        await instances.close()
        await kafka.close()


def operations(
    proxy: Proxy, instances: Instances, reading: ReadRoutes, topics: Topics, schemas: SchemaData | None
) -> list[Operation]:
    """Return the table of all operations."""
    request_max_bytes = proxy.settings.request_max_bytes
    every = [
        *TopicRoutesV2(proxy, topics, schemas).operations(request_max_bytes),
        *ConsumerRoutesV2(proxy, instances, schemas).operations(),
        *TopicRoutes(proxy).operations(),
        *ConfigRoutes(proxy).operations(),
        *GroupRoutes(proxy).operations(),
        *AclRoutes(proxy).operations(),
        *ProduceRoutes(proxy, topics, DataEncoder(schemas)).operations(request_max_bytes),
        *reading.operations(),
    ]
    return served(every, proxy.settings)


def error_response(error: HttpError) -> Response:
    return Response(json.dumps(error.as_json()), error.status, error.headers, "application/json")


async def _clean_up(kafka: Kafka, instances: Instances) -> None:
    while True:
        await asyncio.sleep(_CLEAN_UP_S)
        attempt(kafka.close_idle, "close idle clients")
        attempt(instances.close_expired, "close expired consumers")
        await instances.refresh_patterns()
