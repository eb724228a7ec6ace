"""The table of the registry's operations: path, handler, documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from ottla.edge.registry.answers import MEDIA_TYPES
from ottla.edge.registry.api import SchemaHandlers, SubjectHandlers
from ottla.edge.registry.api_settings import ServiceHandlers, SettingHandlers
from ottla.edge.registry.associations.api import AssociationHandlers
from ottla.edge.registry.associations.requests import OPERATIONS
from ottla.edge.registry.associations.table import LIFECYCLES
from ottla.edge.registry.compatibility import LEVELS
from ottla.edge.registry.exporters.api import ExporterHandlers
from ottla.edge.registry.exporters.definition import ContextType, ExporterState
from ottla.edge.registry.forwarding import Forwarding
from ottla.edge.registry.requests import MODES, RULE_KINDS, RULE_MODES
from ottla.edge.registry.service import Registry
from ottla.edge.web.app import Handler, Operation, Parameter
from ottla.edge.web.json_schemas import (
    BOOLEAN,
    INTEGER,
    TEXT,
    TEXTS,
    Schema,
    enum_of,
    list_of,
    map_of,
    object_of,
    or_null,
)
from ottla.schemas.schema import SchemaType

_NUMBER: Final[Schema] = {"type": "integer", "format": "int32", "minimum": -(2**31), "maximum": 2**31 - 1}
_OBJECT: Final[Schema] = {"type": "object"}


def _request(members: Mapping[str, Schema], required: Sequence[str] = ()) -> Schema:
    """Return the schema of an object in a request. Members that the registry does not know are ignored."""
    properties = {name: schema if name in required else or_null(schema) for name, schema in members.items()}
    return {"type": "object", "properties": properties} | ({"required": [*required]} if required else {})


_NUMBERS: Final[Schema] = list_of(_NUMBER)
_NAME: Final[Schema] = {"type": "string", "minLength": 1}
_METADATA: Final[Schema] = _request({"tags": map_of(TEXTS), "properties": map_of(TEXT), "sensitive": TEXTS})


def _rules(modes: frozenset[str]) -> Schema:
    members: dict[str, Schema] = {
        "name": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_-]{0,63}$"}, "type": _NAME, "doc": TEXT,
        "kind": enum_of(*sorted(RULE_KINDS)), "mode": enum_of(*sorted(modes)),
        "tags": TEXTS, "params": map_of(TEXT), "expr": TEXT, "onSuccess": TEXT, "onFailure": TEXT,
        "disabled": BOOLEAN,
    }  # fmt: skip
    return list_of(_request(members, ["name", "type"]))


_RULE_SET: Final[Schema] = _request({kind: _rules(modes) for kind, modes in RULE_MODES.items()} | {"enableAt": TEXT})
_ENTITY: Final[Schema] = object_of({"entityType": TEXT, "entityPath": TEXT})
_TAGS_OF_ENTITY: Final[Schema] = object_of({"schemaEntity": _ENTITY}, {"tags": or_null(TEXTS)})
_REFERENCE: Final[Schema] = object_of({"name": _NAME, "subject": _NAME, "version": _NUMBER})
_STORED: Final[dict[str, Schema]] = {
    "schema": TEXT, "schemaType": _NAME, "references": list_of(_REFERENCE), "metadata": _OBJECT, "ruleSet": _OBJECT,
    "subject": _NAME, "version": _NUMBER, "id": _NUMBER, "guid": {"type": "string", "format": "uuid"},
    "ts": INTEGER, "deleted": BOOLEAN, "schemaTags": list_of(_TAGS_OF_ENTITY), "aliases": TEXTS,
    "maxId": _NUMBER, "associations": list_of(_OBJECT),
}  # fmt: skip
_NEW_SCHEMA: Final[Schema] = {**_request({
    "schema": TEXT, "schemaType": {"type": "string", "examples": [str(kind) for kind in SchemaType]},
    "references": list_of(_request(_REFERENCE["properties"], ["name", "subject"])), "metadata": _METADATA,
    "ruleSet": _RULE_SET, "id": _NUMBER, "version": _NUMBER, "propagateSchemaTags": BOOLEAN,
    "schemaTagsToAdd": list_of(_TAGS_OF_ENTITY), "schemaTagsToRemove": list_of(_TAGS_OF_ENTITY),
}), "examples": [{"schema": '{"type": "string"}', "schemaType": "AVRO"}]}  # fmt: skip
_TAG_CHANGE: Final[Schema] = _request({
    "tagsToAdd": list_of(_TAGS_OF_ENTITY), "tagsToRemove": list_of(_TAGS_OF_ENTITY), "metadata": _METADATA,
    "ruleSet": _RULE_SET, "rulesToMerge": _RULE_SET, "rulesToRemove": TEXTS, "newVersion": _NUMBER,
})  # fmt: skip
_VERSION: Final[Schema] = {"type": "object", "required": ["schema"], "properties": _STORED}
_REGISTERED: Final[Schema] = {"type": "object", "required": ["id"], "properties": _STORED}
_MODE_NAME: Final[Schema] = enum_of(*sorted(MODES))
_MODE: Final[Schema] = {"type": "object", "properties": {"mode": _MODE_NAME}}
_NEW_MODE: Final[Schema] = {**_request({"mode": _MODE_NAME}), "examples": [{"mode": "READWRITE"}]}
_LEVEL: Final[Schema] = enum_of(*sorted(LEVELS))
_CONFIG_MEMBERS: Final[dict[str, Schema]] = {
    "alias": TEXT, "normalize": BOOLEAN, "validateFields": BOOLEAN, "validateRules": BOOLEAN,
    "compatibilityGroup": TEXT, "compatibilityPolicy": TEXT, "defaultMetadata": _METADATA,
    "overrideMetadata": _METADATA, "defaultRuleSet": _RULE_SET, "overrideRuleSet": _RULE_SET,
}  # fmt: skip
_CONFIG: Final[Schema] = {"type": "object", "properties": _CONFIG_MEMBERS | {"compatibilityLevel": _LEVEL}}
_CONFIG_CHANGED: Final[Schema] = {"type": "object", "properties": _CONFIG_MEMBERS | {"compatibility": _LEVEL}}
_CONFIG_CHANGE: Final[Schema] = {
    **_request(_CONFIG_MEMBERS | {"compatibility": _LEVEL, "compatibilityLevel": _LEVEL}),
    "examples": [{"compatibility": "BACKWARD"}],
}
_VERDICT: Final[Schema] = object_of({"is_compatible": BOOLEAN}, {"messages": TEXTS})
_LIFECYCLE_NAME: Final[Schema] = enum_of(*sorted(LIFECYCLES))
_RESOURCE_MEMBERS: Final[dict[str, Schema]] = {
    "resourceName": _NAME, "resourceNamespace": _NAME, "resourceId": _NAME, "resourceType": _NAME,
}  # fmt: skip
_ASSOCIATION_MEMBERS: Final[dict[str, Schema]] = {
    "subject": _NAME, "associationType": _NAME, "lifecycle": _LIFECYCLE_NAME, "frozen": BOOLEAN,
}  # fmt: skip
_ASSOCIATION: Final[Schema] = {
    "type": "object", "required": ["subject", "guid"],
    "properties": _RESOURCE_MEMBERS | _ASSOCIATION_MEMBERS | {"guid": _NAME, "createTs": INTEGER, "updateTs": INTEGER},
}  # fmt: skip
_NEW_ASSOCIATION: Final[dict[str, Schema]] = _ASSOCIATION_MEMBERS | {"schema": _NEW_SCHEMA, "normalize": BOOLEAN}
_PUT_RESOURCE: Final[Schema] = _request(
    _RESOURCE_MEMBERS | {"associations": list_of(_request(_NEW_ASSOCIATION))},
    ["resourceName", "resourceNamespace", "associations"],
)
_RESOURCE: Final[Schema] = {
    "type": "object",
    # The names are those of the request, which may be empty.
    "properties": dict.fromkeys(_RESOURCE_MEMBERS, TEXT) | {
        "associations": list_of({"type": "object", "properties": _ASSOCIATION_MEMBERS | {"schema": _VERSION}}),
    },
}  # fmt: skip
_CHANGED_ASSOCIATION: Final[Schema] = _request(
    _NEW_ASSOCIATION | {"opType": enum_of(*sorted(OPERATIONS)), "cascadeLifecycle": BOOLEAN}, ["opType"]
)
_BATCH_CHANGE: Final[Schema] = _request(
    {"requests": list_of(_request(_RESOURCE_MEMBERS | {"associations": list_of(_CHANGED_ASSOCIATION)}))}, ["requests"]
)
_QUERY: Final[Schema] = _request(_RESOURCE_MEMBERS | {"associationTypes": TEXTS, "lifecycle": _LIFECYCLE_NAME})
_BATCH_GET: Final[Schema] = _request({"requests": list_of(_QUERY)}, ["requests"])
_RESULT: Final[Schema] = {"type": "object", "properties": {"result": _RESOURCE, "error": _OBJECT}}
_RESULTS: Final[Schema] = object_of({"results": list_of(_RESULT)})
_DESTINATION: Final[Schema] = map_of(TEXT)
_EXPORTER_MEMBERS: Final[dict[str, Schema]] = {
    "contextType": enum_of(*ContextType), "context": TEXT, "subjects": TEXTS, "subjectRenameFormat": TEXT,
    "config": _DESTINATION,
}  # fmt: skip
_EXPORTER_CHANGE: Final[Schema] = {"type": "object", "properties": _EXPORTER_MEMBERS}
_EXPORTER: Final[Schema] = object_of({"name": TEXT} | _EXPORTER_MEMBERS)
_NEW_EXPORTER: Final[Schema] = {**_EXPORTER, "required": ["name", "config"]}
_EXPORTER_NAME: Final[Schema] = object_of({"name": TEXT})
_EXPORTER_STATUS: Final[Schema] = object_of({
    "name": TEXT, "state": enum_of(*ExporterState), "offset": INTEGER, "ts": INTEGER, "trace": TEXT,
})  # fmt: skip

#: the variable segments of paths
PARAMETERS: Final = (
    Parameter("id", "Id of a schema.", {"type": "integer", "format": "int32", "minimum": 0, "maximum": 2**31 - 1}),
    Parameter("guid", "Guid of a schema: a hash of its content.", {"type": "string", "format": "uuid"}),
    Parameter("subject", "Name of a subject; `:.CONTEXT:NAME` names one in a context.", _NAME),
    Parameter("version", "Number of a version; `latest` and -1 stand for the latest.", {"anyOf": [
        {"type": "integer", "format": "int32", "minimum": 1, "maximum": 2**31 - 1}, {"enum": [-1, "latest"]},
    ]}),
    Parameter("context", "Name of a context, with or without its dot.", {"type": "string", "pattern": "^[^:]+$"}),
    Parameter("resourceId", "Id of a topic.", _NAME),
    Parameter("resourceName", "Name of a topic; `-` stands for all.", _NAME),
    Parameter("resourceNamespace", "Id of a cluster; `-` stands for all.", _NAME),
)  # fmt: skip


def _flag(name: str, text: str) -> Parameter:
    # As in Confluent's registry, any other word than true means false.
    return Parameter(name, text, {"anyOf": [{"type": "boolean"}, {"type": "string"}], "default": False})


_DELETED = _flag("deleted", "Also what is soft deleted.")
_DELETED_ONLY = _flag("deletedOnly", "Only what is soft deleted.")
_NORMALIZE = _flag("normalize", "Normalise the schema first.")
_FORMAT = Parameter("format", "Another notation of the schema: `resolved` for Avro, `serialized` for Protobuf.")
_REFERENCE_FORMAT = Parameter("referenceFormat", "`qualified`: name the context in the subjects of references.")
_SUBJECT = Parameter("subject", "A subject that has the id; its context is searched first.")
_PREFIX = Parameter("subjectPrefix", "Only subjects of a context that start with this; `:*:` stands for all contexts.")
_TAGS = Parameter("findTags", "Return the places with this tag; `*` for all tags. Repeatable.")
_PAGE = (
    Parameter("offset", "Skip this many.", {**_NUMBER, "default": 0}),
    Parameter("limit", "Return at most this many; -1 for all.", {**_NUMBER, "default": -1}),
)
_RESOURCE_TYPE = Parameter("resourceType", "The type of the resource: only `topic` exists.")
_ASSOCIATION_TYPE = Parameter("associationType", "`key` or `value`. Repeatable.")
_LIFECYCLE = Parameter("lifecycle", "`STRONG` or `WEAK`.")
_TO_GLOBAL = _flag("defaultToGlobal", "Return what holds for the subject if it has no own.")

_NOT_FOUND_SUBJECT: Final = "40401: the subject does not exist."
_NOT_FOUND_VERSION: Final = "40401: the subject does not exist. 40402: the version does not exist."
_NOT_FOUND_SCHEMA: Final = "40403: the schema does not exist."
_BAD_BODY: Final = "The body is not JSON."
_BAD_MEMBER: Final = "422: the body is not an object, or a member has a wrong type."
_NO_WRITE: Final = (
    "50001: the topic cannot be written. 50002: the outcome is not known. 50003, 50004: the leader does not answer, or "
    "is not known."
)


def make_operations(
    registry: Registry,
    forwarding: Forwarding,
    exporters: ExporterHandlers,
    *,
    cluster_id: str,
    group: str,
    request_max_bytes: int,
) -> list[Operation]:
    """Return the operations of the registry."""
    schemas, subjects = SchemaHandlers(registry, forwarding), SubjectHandlers(registry, forwarding)
    settings = SettingHandlers(registry, forwarding)
    service = ServiceHandlers(registry, forwarding, cluster_id=cluster_id, group=group)
    associations = AssociationHandlers(registry, forwarding)
    in_contexts = [
        *_schema_rows(schemas), *_subject_rows(subjects), *_setting_rows(settings), *_association_rows(associations),
    ]  # fmt: skip
    # A client that is configured with the URL of a context also lists contexts there.
    below = [
        replace(row, path=f"/contexts/{{context}}{row.path}", tag="in a context")
        for row in (*in_contexts, *_context_rows(settings)[:1])
    ]
    rows = [*_service_rows(service), *in_contexts, *_context_rows(settings), *_exporter_rows(exporters), *below]
    return [replace(row, body_bytes_max=request_max_bytes) for row in rows]


def _row(
    method_and_path: str,
    handler: Handler,
    summary: str,
    tag: str,
    result: Schema | None,
    *,
    query: Sequence[Parameter] = (),
    body: Schema | None = None,
    errors: Mapping[int, str] | None = None,
    status: int = 200,
    is_public: bool = False,
) -> Operation:
    method, path = method_and_path.split(" ")
    known = {406: "The client accepts none of the media types.", **(errors or {})}
    if body is not None:
        wrong = f"{_BAD_MEMBER} {known.get(422, '')}".strip()
        known = {400: _BAD_BODY, 413: "The body is too large.", **known, 422: wrong}
    if method != "GET" and path != "/":
        known = {500: _NO_WRITE, **known}
    return Operation(
        method=method, path=path, handler=handler, summary=summary, tag=tag, query=query, body=body,
        consumes=(*MEDIA_TYPES, "application/octet-stream"), produces=MEDIA_TYPES, answers={status: result},
        errors=known, is_public=is_public,
    )  # fmt: skip


def _service_rows(service: ServiceHandlers) -> list[Operation]:
    tag = "service"
    unhealthy = {503: "The instance is not healthy."}
    return [
        _row("GET /", service.root, "Answer {}", tag, _OBJECT, is_public=True),
        _row("POST /", service.root, "Answer {}", tag, _OBJECT, is_public=True),
        _row("GET /v1/metadata/id", service.cluster, "Get the ids of the clusters", tag, _OBJECT),
        _row("GET /v1/metadata/version", service.version, "Get the version of the service", tag, _OBJECT),
        _row("GET /v1/metadata/deployment", service.deployment, "Get attributes of the service", tag, _OBJECT),
        _row("GET /_health", service.health, "Get the health", tag, _OBJECT, errors=unhealthy, is_public=True),
        _row("GET /master_available", service.leader_available, "Get whether there is a leader", tag, _OBJECT,
             errors=unhealthy, is_public=True),
    ]  # fmt: skip


def _schema_rows(api: SchemaHandlers) -> list[Operation]:
    tag, missing = "schemas", {404: _NOT_FOUND_SCHEMA}
    latest_only = _flag("latestOnly", "Only the latest version of each subject.")
    return [
        _row("GET /schemas/types", api.types, "List the schema types", tag, TEXTS),
        _row("GET /schemas", api.list_schemas, "List schemas", tag, list_of(_VERSION),
             query=(_PREFIX, _flag("aliases", "Also subjects whose alias has the prefix."), _DELETED, latest_only,
                    Parameter("ruleType", "Only schemas with a rule of this type."), _RESOURCE_TYPE,
                    _ASSOCIATION_TYPE,
                    Parameter("lifecycle", "`STRONG`, `WEAK`, or `NONE` for subjects without association. Repeatable."),
                    *_PAGE),
             errors={404: "A number or the lifecycle is not valid."}),
        _row("GET /schemas/ids/{id}", api.by_id, "Get a schema by id", tag, _VERSION, errors=missing,
             query=(_SUBJECT, _FORMAT, _REFERENCE_FORMAT, _TAGS, _flag("fetchMaxId", "Also return the highest id."))),
        _row("GET /schemas/ids/{id}/schema", api.text_by_id, "Get the text of a schema by id", tag, {},
             query=(_SUBJECT, _FORMAT), errors=missing),
        _row("GET /schemas/ids/{id}/subjects", api.subjects_of_id, "List the subjects that have an id", tag, TEXTS,
             query=(_SUBJECT, _DELETED, *_PAGE), errors=missing),
        _row("GET /schemas/ids/{id}/versions", api.versions_of_id, "List the versions that have an id", tag,
             {"type": "array", "items": {"type": "object", "properties": {"subject": TEXT, "version": _NUMBER}}},
             query=(_SUBJECT, _DELETED, *_PAGE), errors=missing),
        _row("GET /schemas/guids/{guid}", api.by_guid, "Get a schema by guid", tag, _VERSION, query=(_FORMAT,),
             errors=missing),
        _row("GET /schemas/guids/{guid}/ids", api.ids_of_guid, "List the ids of a guid in all contexts", tag,
             {"type": "array", "items": {"type": "object", "properties": {"context": TEXT, "id": _NUMBER}}},
             errors=missing),
    ]  # fmt: skip


def _subject_rows(api: SubjectHandlers) -> list[Operation]:
    tag, version = "subjects", "/subjects/{subject}/versions/{version}"
    no_subject, no_version = (
        {404: _NOT_FOUND_SUBJECT},
        {404: _NOT_FOUND_VERSION, 422: "42202: the version is not valid."},
    )
    no_schema = {404: f"{_NOT_FOUND_SUBJECT} {_NOT_FOUND_SCHEMA}"}
    invalid = {422: "42201: the schema is not valid. 42205: the mode does not allow it. 42208: the name is not valid."}
    permanent = _flag("permanent", "Delete permanently what was soft deleted.")
    verbose = _flag("verbose", "Return the reasons.")
    refused = {422: "42205: read-only. 42206: another schema refers to it."}
    return [
        _row("GET /subjects", api.list_subjects, "List subjects", tag, TEXTS,
             query=(_PREFIX, _DELETED, _DELETED_ONLY, *_PAGE), errors={404: "A number is not valid."}),
        _row("POST /subjects/{subject}", api.lookup, "Find the version of a schema", tag, _VERSION, body=_NEW_SCHEMA,
             query=(_NORMALIZE, _FORMAT, _DELETED), errors={**no_schema, **invalid}),
        _row("DELETE /subjects/{subject}", api.delete, "Delete a subject", tag, _NUMBERS, query=(permanent,),
             errors={404: "40401, 40404, 40405: it does not exist, or was (not) soft deleted.", **refused}),
        _row("GET /subjects/{subject}/versions", api.versions, "List the versions of a subject", tag, _NUMBERS,
             query=(_DELETED, _DELETED_ONLY, _flag("deletedAsNegative", "Negative numbers for deleted ones."), *_PAGE),
             errors=no_subject),
        _row("POST /subjects/{subject}/versions", api.register, "Register a schema", tag, _REGISTERED,
             body=_NEW_SCHEMA, query=(_NORMALIZE, _FORMAT, _flag("force", "Skip the compatibility check.")),
             errors={409: "40901: the schema is incompatible with an earlier one.", **invalid}),
        _row(f"GET {version}", api.version, "Get a version of a subject", tag, _VERSION,
             query=(_FORMAT, _REFERENCE_FORMAT, _DELETED, _TAGS), errors=no_version),
        _row(f"DELETE {version}", api.delete_version, "Delete a version of a subject", tag, _NUMBER, query=(permanent,),
             errors={404: "40401, 40402, 40406, 40407: it does not exist, or was (not) soft deleted.", **refused}),
        _row(f"GET {version}/schema", api.text, "Get the text of a version", tag, {}, query=(_FORMAT, _DELETED),
             errors=no_version),
        _row(f"GET {version}/referencedby", api.referenced_by, "List the ids of schemas that refer to a version",
             tag, _NUMBERS, query=(_DELETED, *_PAGE), errors=no_version),
        _row(f"POST {version}/tags", api.tags, "Add and remove tags", tag, _REGISTERED, body=_TAG_CHANGE,
             errors={**no_version, 409: "40901: incompatible.", **invalid}),
        _row("GET /subjects/{subject}/metadata", api.latest_with_metadata, "Get the latest version with metadata",
             tag, _VERSION, query=(Parameter("key", "Name of a property. Repeatable."),
                              Parameter("value", "Its value. Repeatable."), _FORMAT, _DELETED),
             errors=no_schema),
        _row("POST /compatibility/subjects/{subject}/versions/{version}", api.check,
             "Check a schema against a version", "compatibility", _VERDICT, body=_NEW_SCHEMA,
             query=(_NORMALIZE, verbose),
             errors={**no_version, 422: "42201: the schema is not valid. 42202: the version is not valid."}),
        _row("POST /compatibility/subjects/{subject}/versions", api.check, "Check a schema against a subject",
             "compatibility", _VERDICT, body=_NEW_SCHEMA, query=(_NORMALIZE, verbose),
             errors={422: "42201: the schema is not valid."}),
    ]  # fmt: skip


def _setting_rows(api: SettingHandlers) -> list[Operation]:
    rows = []
    for path, where in (("", "of all subjects"), ("/{subject}", "of a subject")):
        no_config, no_mode = {404: "40408: it has none of its own."}, {404: "40409: it has none of its own."}
        bad_config = {422: "42203: unknown level. 42205: read-only. 42208: invalid name. 42210: invalid rules."}
        bad_mode = {422: "42204: unknown mode. 42205: not permitted. 42206: referenced. 42208: invalid name."}
        rows += [
            _row(f"GET /config{path}", api.get_config, f"Get the configuration {where}", "config", _CONFIG,
                 query=(_TO_GLOBAL,), errors=no_config),
            _row(f"PUT /config{path}", api.set_config, f"Change the configuration {where}", "config",
                 _CONFIG_CHANGED, body=_CONFIG_CHANGE, errors=bad_config),
            _row(f"DELETE /config{path}", api.delete_config, f"Reset the configuration {where}", "config", _CONFIG,
                 errors={**no_config, 422: "42205: read-only."}),
            _row(f"GET /mode{path}", api.get_mode, f"Get the mode {where}", "mode", _MODE, query=(_TO_GLOBAL,),
                 errors=no_mode),
            _row(f"PUT /mode{path}", api.set_mode, f"Set the mode {where}", "mode", _MODE, body=_NEW_MODE,
                 query=(_flag("force", "Set IMPORT although there are schemas."),), errors=bad_mode),
            _row(f"DELETE /mode{path}", api.delete_mode, f"Reset the mode {where}", "mode", _MODE,
                 query=(_flag("recursive", "Also the modes of all subjects of the context."),), errors=no_mode),
        ]  # fmt: skip
    return rows


def _association_rows(api: AssociationHandlers) -> list[Operation]:
    tag, by_id = "associations", "/associations/resources/{resourceId}"
    query = (_RESOURCE_TYPE, _ASSOCIATION_TYPE, _LIFECYCLE, *_PAGE)
    bad_query = {404: "A number or the lifecycle is not valid."}
    dry_run = _flag("dryRun", "Only check whether the change can be made.")
    context = Parameter("context", "The context of subjects that name none.")
    conflicts = (
        "40903, 40904, 40905: another association exists. 40907: the subject has no schema. 40908: it is frozen."
    )
    invalid = (
        "42201: the schema is not valid. 42205: not permitted. 42206: the subject is referenced. 42212: not valid."
    )
    bad_context = {400: f"{_BAD_BODY} Or the name of the context is not valid."}
    refused = {**bad_context, 409: f"40901: the schema is incompatible. {conflicts}", 422: invalid}
    is_empty = {**bad_context, 422: "42212: there are no requests."}
    return [
        _row("GET /associations/subjects/{subject}", api.of_subject, "List the associations of a subject", tag,
             list_of(_ASSOCIATION), query=query, errors=bad_query),
        _row("GET /associations/resources/{resourceNamespace}/{resourceName}", api.of_name,
             "List the associations of a topic by the id of its cluster and its name; `-` stands for all", tag,
             list_of(_ASSOCIATION), query=query, errors=bad_query),
        _row(f"GET {by_id}", api.of_id, "List the associations of a topic by its id", tag, list_of(_ASSOCIATION),
             query=query, errors=bad_query),
        _row("POST /associations", api.create, "Create associations", tag, _RESOURCE, body=_PUT_RESOURCE,
             query=(context, dry_run), errors=refused),
        _row(f"PUT {by_id}", api.create_or_update, "Create or update associations", tag, _RESOURCE, body=_PUT_RESOURCE,
             query=(context, dry_run), errors=refused),
        _row(f"DELETE {by_id}", api.delete, "Delete associations", tag, None, status=204,
             query=(_RESOURCE_TYPE, _ASSOCIATION_TYPE,
                    _flag("cascadeLifecycle", "Also frozen associations, with their subjects."), dry_run),
             errors={404: "40410: there is none.", 409: "40908: it is frozen.",
                     422: "42205: read-only. 42206: another schema refers to the subject."}),
        _row("POST /associations:batchGet", api.batch_get, "List the associations of several topics", tag, _RESULTS,
             body=_BATCH_GET, status=207, query=(_flag("includeSchemas", "With the latest schema of each subject."),),
             errors={422: "42212: there are no requests."}),
        _row("POST /associations:batchMutate", api.batch_change, "Change the associations of several topics", tag,
             _RESULTS, body=_BATCH_CHANGE, status=207, query=(context, dry_run), errors=is_empty),
    ]  # fmt: skip


def _context_rows(api: SettingHandlers) -> list[Operation]:
    tag = "contexts"
    return [
        _row("GET /contexts", api.contexts, "List contexts", tag, TEXTS,
             query=(Parameter("contextPrefix", "Only contexts that start with this."), *_PAGE),
             errors={404: "A number is not valid."}),
        _row("DELETE /contexts/{context}", api.delete_context, "Delete a context", tag, None, status=204,
             errors={400: "The name is not valid.", 422: "42211: it has subjects."}),
    ]  # fmt: skip


def _exporter_rows(api: ExporterHandlers) -> list[Operation]:
    tag, path = "exporters", "/exporters/{name}"
    missing = {404: "40450: the exporter does not exist.", 500: _NO_WRITE}
    refused = missing | {403: "40301: the user may not change exporters."}
    invalid = "40951: the configuration is not valid. 40952: the subjects are not valid."
    taken = f"40950: the name is not valid. {invalid} 40960: the exporter exists. 40964: there are too many."
    not_paused = {409: "40963: the exporter is not paused."}
    named = _EXPORTER_NAME
    return [
        _row("GET /exporters", api.names, "List exporters", tag, TEXTS, errors={500: _NO_WRITE}),
        _row("POST /exporters", api.create, "Create an exporter", tag, named, body=_NEW_EXPORTER,
             errors={403: refused[403], 409: taken}),
        _row(f"GET {path}", api.get, "Get an exporter", tag, _EXPORTER, errors=missing),
        _row(f"PUT {path}", api.update, "Change a paused exporter", tag, named, body=_EXPORTER_CHANGE,
             errors=refused | {409: f"{invalid} {not_paused[409]}"}),
        _row(f"DELETE {path}", api.delete, "Delete an exporter", tag, None, status=204, errors=refused),
        _row(f"GET {path}/status", api.status, "Get the progress of an exporter", tag, _EXPORTER_STATUS,
             errors=missing),
        _row(f"GET {path}/config", api.config, "Get the configuration of an exporter, without secrets", tag,
             _DESTINATION, errors=missing),
        _row(f"PUT {path}/config", api.set_config, "Replace the configuration of a paused exporter", tag, named,
             body=_DESTINATION, errors=refused | {409: f"40951: it is not valid. {not_paused[409]}"}),
        _row(f"PUT {path}/pause", api.pause, "Pause an exporter", tag, named, errors=refused),
        _row(f"PUT {path}/resume", api.resume, "Let a paused exporter continue", tag, named,
             errors=refused | {409: "40961, 40962: the exporter is running, or starting."}),
        _row(f"PUT {path}/reset", api.reset, "Let a paused exporter start from the beginning", tag, named,
             errors=refused | not_paused),
    ]  # fmt: skip
