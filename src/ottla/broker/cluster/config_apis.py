"""APIs that describe and change the settings of topics, groups and the broker."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from ottla.broker.component import Component, ServedApi
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.leadership import set_min_isr
from ottla.broker.metadata.nodes import (
    BROKER_DEFAULT,
    GROUP_CONFIGS,
    broker_config_path,
    config_json,
    count_change,
    group_config_path,
    topic_config_path,
)
from ottla.broker.metadata.schema_settings import check_validation
from ottla.broker.metadata.store import Check, Create, Delete, Op, Put
from ottla.broker.metadata.topic_plans import check_topic_name, check_topics, put_state
from ottla.broker.metadata.view import ClusterView
from ottla.broker.request import RequestContext
from ottla.env.log_limit import LogLimit
from ottla.model.errors import (
    ErrorCode,
    InvalidConfig,
    InvalidRequest,
    KafkaError,
    PolicyViolation,
    Refused,
    UnknownTopicOrPartition,
)
from ottla.model.settings import (
    BROKER_SETTINGS,
    GROUP_SETTINGS,
    TOPIC_SETTINGS,
    AlterOp,
    ConfigEntry,
    InvalidSettings,
    TopicSettings,
    apply_incremental,
    check_group_overrides,
    describe_broker,
    describe_broker_defaults,
    describe_group,
    describe_topic,
    unknown_settings,
)
from ottla.model.settings_security import is_listener_setting, listener_of
from ottla.security.acls import ResourceType
from ottla.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from ottla.wire.messages.alter_configs import AlterConfigsResourceResponse as LegacyResult
from ottla.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from ottla.wire.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

log = logging.getLogger(__name__)
log.addFilter(LogLimit())

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
#: groups that may have settings of their own, so that clients cannot fill the store
GROUPS_WITH_SETTINGS_MAX = 10_000
GROUP_NAME_LENGTH_MAX = 1000
#: a change of one setting: name, operation, value
Change = tuple[str, int, str | None]


_Alteration = Callable[[RequestContext, ClusterView, str, Sequence[Change], bool], list[Op]]


class ConfigApis(Component):
    """The APIs of settings."""

    def __init__(self, *, metadata: ClusterMetadata) -> None:
        self._metadata = metadata
        self._alterations: dict[int, _Alteration] = {
            TOPIC: self._alter_topic,
            BROKER: self._alter_broker,
            GROUP: self._alter_group,
        }

    def apis(self) -> Mapping[int, ServedApi]:
        return {
            32: ServedApi(1, 4, self.describe_configs, large_reply=True),
            33: ServedApi(0, 2, self.alter_configs),
            44: ServedApi(0, 1, self.incremental_alter_configs),
            74: ServedApi(0, 1, self.list_config_resources),
        }

    def describe_configs(self, request: DescribeConfigsRequest, context: RequestContext) -> DescribeConfigsResponse:
        """DescribeConfigs (32) v1-v4. Null or no keys asks for all. v3 type and documentation."""
        results = []
        # Answer each resource once, so that a request cannot multiply the size of its reply.
        for resource in {(r.resource_type, r.resource_name): r for r in request.resources}.values():
            result = DescribeConfigsResult(
                error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
            )
            try:
                _check_access(context, resource.resource_type, resource.resource_name)
                entries = {entry.name: entry for entry in self._entries(resource)}
                # Named settings are answered in the order of the request, which kafkajs's test suite expects.
                keys = dict.fromkeys(resource.configuration_keys or entries)
                result.configs = [
                    _entry(entries[key], request.include_synonyms, request.include_documentation)
                    for key in keys
                    if key in entries
                ]
            except KafkaError as error:
                result.error_code, result.error_message = error.code, str(error)
            results.append(result)
        return DescribeConfigsResponse(results=results)

    def _entries(self, resource: DescribeConfigsResource) -> list[ConfigEntry]:
        if resource.resource_type == TOPIC:
            check_topic_name(resource.resource_name)
            topic = self._metadata.view.topics.get(resource.resource_name)
            if topic is None:
                raise UnknownTopicOrPartition(f"topic {resource.resource_name!r} does not exist")
            return describe_topic(topic.config, self._metadata.settings, topic.replication_factor)
        if resource.resource_type == BROKER:
            if not resource.resource_name:
                return describe_broker_defaults(self._metadata.settings)
            self._check_broker(resource.resource_name)
            return describe_broker(self._metadata.settings)
        if resource.resource_type == GROUP:
            _check_group(resource.resource_name)
            return describe_group(
                self._metadata.view.group_configs.get(resource.resource_name, {}), self._metadata.settings
            )
        raise InvalidRequest(f"resource type {resource.resource_type} has no settings here")

    def _check_broker(self, name: str) -> None:
        if name != str(self._metadata.broker_id):
            raise InvalidRequest(f"this is broker {self._metadata.broker_id}; ask broker {name!r} itself")

    async def incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest, context: RequestContext
    ) -> IncrementalAlterConfigsResponse:
        """IncrementalAlterConfigs (44) v0-v1. Operations: 0 set, 1 delete, 2 append, 3 subtract."""
        repeated = _repeated([(r.resource_type, r.resource_name) for r in request.resources])
        results = []
        for resource in request.resources:
            key = resource.resource_type, resource.resource_name
            changes = [(config.name, config.config_operation, config.value) for config in resource.configs]
            code, message = await self._alter(
                context, key, changes, key in repeated, request.validate_only, replace=False
            )
            results.append(
                AlterConfigsResourceResponse(
                    error_code=code, error_message=message, resource_type=key[0], resource_name=key[1]
                )
            )
        return IncrementalAlterConfigsResponse(responses=results)

    async def alter_configs(self, request: AlterConfigsRequest, context: RequestContext) -> AlterConfigsResponse:
        """AlterConfigs (33) v0-v2: replaces everything that was set before."""
        repeated = _repeated([(r.resource_type, r.resource_name) for r in request.resources])
        results = []
        for resource in request.resources:
            key = resource.resource_type, resource.resource_name
            changes = [(config.name, int(AlterOp.SET), config.value) for config in resource.configs]
            code, message = await self._alter(
                context, key, changes, key in repeated, request.validate_only, replace=True
            )
            results.append(
                LegacyResult(error_code=code, error_message=message, resource_type=key[0], resource_name=key[1])
            )
        return AlterConfigsResponse(responses=results)

    async def _alter(
        self,
        context: RequestContext,
        key: tuple[int, str],
        changes: Sequence[Change],
        repeated: bool,
        validate_only: bool,
        *,
        replace: bool,
    ) -> tuple[int, str | None]:
        """Change the settings of one resource. Return an error code and its text, or 0 and None."""
        kind, name = key
        try:
            if repeated:
                raise InvalidRequest("the request names this resource more than once")
            if kind not in self._alterations:
                raise InvalidRequest(f"settings of resource type {kind} cannot be changed here")
            _check_access(context, kind, name)
            alteration = self._alterations[kind]

            def decide(view: ClusterView) -> tuple[list[Op], None]:
                ops = alteration(context, view, name, changes, replace)
                return [] if validate_only else ops, None

            await self._metadata.write(decide)
        except InvalidSettings as error:
            # As in Kafka: an invalid value is INVALID_REQUEST for a broker and INVALID_CONFIG for other resources.
            return ErrorCode.INVALID_REQUEST if kind == BROKER else ErrorCode.INVALID_CONFIG, str(error)
        except KafkaError as error:
            return error.code, str(error)
        return 0, None

    def _alter_topic(
        self, context: RequestContext, view: ClusterView, name: str, changes: Sequence[Change], replace: bool
    ) -> list[Op]:
        check_topic_name(name)
        topic = view.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
        changed = apply_incremental({} if replace else topic.config, list(changes), TOPIC_SETTINGS)
        context.check_dead_letters(name, topic.config, changed)
        check_validation(name, TopicSettings.resolve(changed, self._metadata.settings), self._metadata.settings)
        ops = [check_topics(view), _write_config(view, topic_config_path(name), changed)]
        resized = set_min_isr(view, topic, lambda view, _, count: self._metadata.wanted_min_isr(view, changed, count))
        return ops if resized is None else [*ops, put_state(view, resized)]

    def _alter_broker(
        self, context: RequestContext, view: ClusterView, name: str, changes: Sequence[Change], replace: bool
    ) -> list[Op]:
        """Return the operations that store the changed settings, unless what they must agree with has changed."""
        if name:
            self._check_broker(name)
            if any(each == "min.insync.replicas" and operation != AlterOp.DELETE for each, operation, _ in changes):
                raise InvalidConfig(
                    "min.insync.replicas cannot differ between brokers; "
                    "set it for all (--broker-defaults) or for a topic"
                )
        known: Mapping[str, str] = view.broker_configs.get(name or BROKER_DEFAULT, {})
        changed = apply_incremental({} if replace else known, list(changes), BROKER_SETTINGS)
        listeners = {endpoint.name for endpoint in self._metadata.settings.endpoints}
        for changed_name, operation, _ in changes:
            is_set = operation != AlterOp.DELETE and is_listener_setting(changed_name)
            if is_set and (listener := listener_of(changed_name)) not in listeners:
                raise InvalidRequest(f"{changed_name}: there is no listener {listener} in listeners")
        if unknown := unknown_settings(set(changed) - set(known)):
            log.warning("unknown settings are stored without effect count=%d first=%.100r", len(unknown), min(unknown))
        defaults, own = view.dynamic_config(self._metadata.broker_id)
        settings = self._metadata.started_settings.with_dynamic(*((defaults, changed) if name else (changed, own)))
        is_moved = settings.schema_registry_url != self._metadata.settings.schema_registry_url
        if is_moved and (problem := settings.misdirected_secrets(settings.explicit)):
            # Other brokers, whose files may differ, refuse to send their secrets (schema_lookup.connect).
            raise InvalidRequest(problem)
        other = broker_config_path(BROKER_DEFAULT if name else str(self._metadata.broker_id))
        version = view.versions.get(other)
        unchanged = Create(other, config_json({})) if version is None else Check(other, version)
        return [unchanged, _write_config(view, broker_config_path(name), changed)]

    def _alter_group(
        self, context: RequestContext, view: ClusterView, name: str, changes: Sequence[Change], replace: bool
    ) -> list[Op]:
        """Return the operations that store the changed settings; none if the group had none and has none."""
        _check_group(name)
        for changed_name, operation, _ in changes:
            if operation != AlterOp.DELETE and changed_name.startswith(("share.", "streams.")):
                raise InvalidConfig(f"{changed_name} cannot be set: there are no share groups and no streams groups")
        known = view.group_configs.get(name)
        changed = apply_incremental({} if replace else known or {}, list(changes), GROUP_SETTINGS)
        check_group_overrides(changed, self._metadata.settings)
        path, deletions = group_config_path(name), view.versions[GROUP_CONFIGS]
        if not changed:
            if known is None:
                return []
            return [count_change(GROUP_CONFIGS, deletions, self._metadata.new_id()), Delete(path, view.versions[path])]
        # Concurrent requests can exceed the limit by their number, because no node counts the groups.
        if known is None and len(view.group_configs) >= GROUPS_WITH_SETTINGS_MAX:
            raise PolicyViolation(f"{GROUPS_WITH_SETTINGS_MAX} groups have settings; delete those of groups out of use")
        # The settings of a group that were deleted and created again have the same version as before.
        return [Check(GROUP_CONFIGS, deletions), _write_config(view, path, changed)]

    def list_config_resources(
        self, request: ListConfigResourcesRequest, context: RequestContext
    ) -> ListConfigResourcesResponse:
        """ListConfigResources (74) v0-v1. v0 lists client metrics only, of which there are none."""
        if not context.may_cluster():
            return ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if context.version == 0:
            return ListConfigResourcesResponse()
        served = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)
        kinds = set(request.resource_types) or set(served)
        if unknown := kinds - set(served):
            return ListConfigResourcesResponse(
                error_code=ErrorCode.UNSUPPORTED_VERSION if unknown else 0, config_resources=()
            )
        resources = []
        if TOPIC in kinds:
            resources += [
                ConfigResource(resource_name=name, resource_type=TOPIC) for name in self._metadata.view.topics
            ]
        for kind in (BROKER, BROKER_LOGGER):
            if kind in kinds:
                brokers = self._metadata.live_brokers(self._metadata.view)
                resources += [ConfigResource(resource_name=str(each), resource_type=kind) for each in brokers]
        if GROUP in kinds:
            resources += [
                ConfigResource(resource_name=name, resource_type=GROUP) for name in self._metadata.view.group_configs
            ]
        return ListConfigResourcesResponse(config_resources=resources)


def _check_access(context: RequestContext, kind: int, name: str) -> None:
    """Raise the KafkaError for a resource whose settings the client may not see, or not change."""
    if kind == TOPIC:
        context.check_topic(name)
    elif kind == GROUP:
        if not context.may(ResourceType.GROUP, name):
            raise Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    elif not context.may_cluster():
        raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def _check_group(name: str) -> None:
    """Raise InvalidRequest if no group can have this name, or one so long that it is not stored."""
    if not name:
        raise InvalidRequest("the name of the group is empty; there are no defaults for all groups")
    if len(name) > GROUP_NAME_LENGTH_MAX:
        raise InvalidRequest(f"the name of the group is longer than {GROUP_NAME_LENGTH_MAX} characters")


def _entry(entry: ConfigEntry, synonyms: bool, documentation: bool) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source_id,
        is_sensitive=entry.sensitive,
        synonyms=[DescribeConfigsSynonym(name=s.name, value=s.value, source=s.source_id) for s in entry.synonyms]
        if synonyms
        else (),
        config_type=entry.type_id,
        documentation=entry.documentation if documentation else None,
    )


def _repeated(keys: Sequence[tuple[int, str]]) -> set[tuple[int, str]]:
    return {key for key, count in Counter(keys).items() if count > 1}


def _write_config(view: ClusterView, path: str, config: Mapping[str, str]) -> Op:
    """Return the operation that replaces the settings at ``path``, or creates them if the view has none there."""
    version = view.versions.get(path)
    return Create(path, config_json(config)) if version is None else Put(path, config_json(config), version)
