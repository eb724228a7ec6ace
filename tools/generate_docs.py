"""Write the reference pages that are made from tables in the code.

python tools/generate_docs.py            write the pages
python tools/generate_docs.py --check    fail if a page is not what the code says
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ottla.model.setting_types import format_value
from ottla.model.settings import BROKER_SETTINGS, GROUP_SETTINGS, TOPIC_SETTINGS, Setting
from ottla.model.settings_foreign import foreign_rows
from ottla.model.settings_group import bound_names, broker_name

if TYPE_CHECKING:
    from ottla.edge.rest.kafka import Kafka

ROOT = Path(__file__).resolve().parent.parent


SETTINGS_HEAD = """\
# Settings

<!-- Written by tools/generate_docs.py from the tables in src/ottla/model; do not edit. -->

The broker reads its settings from a Java properties file, as Kafka does. Names, types and defaults are
Kafka's unless the text says otherwise. An unknown name or a bad value stops the start with a line that says
what to change. Kafka settings without a meaning in Ottla are ignored with a warning. Settings for protection
that Ottla cannot give yet (`ssl.*`, `sasl.*`, `authorizer.class.name` and the like) are refused.

## Broker

*Dynamic* settings can be changed while the broker runs. A value comes from the first of: the dynamic value of
this broker, the dynamic default of the cluster, the properties file, the default.
"""

SETTINGS_TOPIC_HEAD = """
## Topic

Any topic setting can be given when the topic is created and changed later. Without one, the topic uses the
first of the broker settings named here that is set, then the default.
"""


SETTINGS_GROUP_HEAD = """
## Group

Settings of a consumer group of the consumer protocol (KIP-848), changed with IncrementalAlterConfigs for the resource
type GROUP (`kafka-configs.sh --entity-type groups`). They hold from the next heartbeat of each member on. Without a
value of its own a group has the value of the broker setting. Settings of share groups and streams groups are refused.
"""

SETTINGS_FOREIGN_HEAD = """
## Settings of Kafka that Ottla ignores or refuses

Settings of Kafka 4.3 and older versions that have no row above. *File*: in the properties file or on the command line.
*Run time*: in IncrementalAlterConfigs and AlterConfigs. Kafka accepts any other name at run time, for plug-ins; Ottla
refuses it as unknown. Dynamic settings of Kafka without effect here are rows of the first table.
"""


def settings_page() -> str:
    """docs/reference/settings.md"""
    return "\n".join(
        [
            SETTINGS_HEAD,
            *table(("Name", "Type", "Default", "Allowed", "Dynamic", "Meaning"), broker_rows()),
            SETTINGS_TOPIC_HEAD,
            *table(("Name", "Type", "Default", "Allowed", "Broker settings", "Meaning"), topic_rows()),
            SETTINGS_GROUP_HEAD,
            *table(("Name", "Type", "Broker setting", "Bounds", "Meaning"), group_rows()),
            SETTINGS_FOREIGN_HEAD,
            *table(("Name", "File", "Run time"), ((f"`{name}`", *cells) for name, *cells in foreign_rows())),
            "",
        ]
    )


REST_HEAD = """\
# REST proxy

<!-- Written by tools/generate_docs.py from the tables in src/ottla/edge/rest; do not edit. -->

`ottla rest --bootstrap HOST:PORT` serves Confluent's REST API for any Kafka cluster. The proxy describes its operations
itself: `GET /openapi.json` is the OpenAPI document, and `GET /docs` is a page that sends requests.

The settings `api.endpoints.allowlist` and `api.endpoints.blocklist` have the names of operations. `api.v3.topics.*` is
the name of all operations whose names begin with `api.v3.topics.`.
"""

REST_CODES_HEAD = """
## Error codes

An error has the body `{"error_code": 40401, "message": "..."}`. The first three digits are the HTTP status, except
where the table says otherwise. Errors of HTTP itself have the status as their code.
"""

REST_SETTINGS_HEAD = """
## Settings

In a properties file (`--config`) or with `-X NAME=VALUE`. `client.NAME` is a property of all Kafka clients of the
proxy, `producer.NAME` and `consumer.NAME` one of its producers and consumers. Properties have librdkafka's names.
"""


def rest_page() -> str:
    """docs/reference/rest.md"""
    from ottla.edge.rest.consumers import Instances
    from ottla.edge.rest.errors import MEANINGS
    from ottla.edge.rest.proxy import Proxy
    from ottla.edge.rest.service import operations
    from ottla.edge.rest.settings import RestSettings
    from ottla.edge.rest.v3_read import ReadRoutes
    from ottla.edge.rest.writable_topics import Topics
    from ottla.edge.web.server import Listener

    lines = [REST_HEAD]
    # Handlers are not called, so that no Kafka client is needed.
    settings, kafka = RestSettings.parse({}), cast("Kafka", None)
    proxy = Proxy(settings, kafka, Listener("http", "127.0.0.1", 8082))
    rows = operations(proxy, Instances(settings, kafka), ReadRoutes(proxy), Topics(kafka), None)
    for tag in dict.fromkeys(row.tag for row in rows):
        of_tag = [(row.method, f"`{row.path}`", row.summary, f"`{row.name}`") for row in rows if row.tag == tag]
        lines += [f"## {tag}", "", *table(("Method", "Path", "Meaning", "Name"), of_tag), ""]
    return "\n".join(
        [
            *lines[:-1],
            REST_CODES_HEAD,
            *table(("Code", "Meaning"), ((str(code), text) for code, text in sorted(MEANINGS.items()))),
            REST_SETTINGS_HEAD,
            *table(
                ("Name", "Type", "Default", "Allowed", "Meaning"),
                ((*setting_cells(row), row.documentation) for row in RestSettings.rows().values()),
            ),
            "",
        ]
    )


CONSOLE = Path("docs/operate/console.md")
_SETTINGS_MARK = "<!-- settings: written by tools/generate_docs.py -->\n"


def console_page() -> str:
    """docs/operate/console.md: written by hand up to the mark, then the settings"""
    from ottla.edge.console.settings import ConsoleSettings

    text, mark, _ = (ROOT / CONSOLE).read_text().partition(_SETTINGS_MARK)
    rows = ((*setting_cells(row), row.documentation) for row in ConsoleSettings.rows().values())
    return "\n".join([text + mark, *table(("Name", "Type", "Default", "Allowed", "Meaning"), rows), ""])


MONITOR = Path("docs/operate/monitor.md")


def monitor_page() -> str:
    """docs/operate/monitor.md: written by hand up to the mark, then the settings"""
    from ottla.edge.monitor.settings import MonitorSettings

    text, mark, _ = (ROOT / MONITOR).read_text().partition(_SETTINGS_MARK)
    rows = ((*setting_cells(row), row.documentation) for row in MonitorSettings.rows().values())
    return "\n".join([text + mark, *table(("Name", "Type", "Default", "Allowed", "Meaning"), rows), ""])


CHECKS_HEAD = """\
# Checks of a cluster

<!-- Written by tools/generate_docs.py from the table in src/ottla/health/checks; do not edit. -->

`ottla doctor` and the first page of the [console](../operate/console.md) evaluate these checks. They need the Kafka
protocol only, so they work with Apache Kafka, too. They read and change nothing: a few requests for each broker, and
one for some hundreds of topics. What this user may not read, or the cluster does not have, is reported as
`not-checked` with the reason.

```sh
ottla doctor -b 127.0.0.1:9092                 # one reading
ottla doctor -b 127.0.0.1:9092 --compare 60    # two readings, for the checks with "yes" in the column Two readings
ottla doctor -b 127.0.0.1:9092 -o json         # for programs: name, verdict, detail, remedy, kind, names
ottla doctor checks                            # this table
```

| verdict | severity | meaning | exit code |
| --- | --- | --- | --- |
| `fail` | error | something does not work: clients are refused, or records are lost | 1 |
| `warn` | warning | it works, and will not after the next failure, or soon | 0 |
| `info` | info | it may be intended | 0 |
| `ok` | | nothing is wrong | 0 |

A check may report a higher or lower severity than the one in the table, if its meaning says so.
"""

_KINDS = {
    "brokers": "Brokers", "partitions": "Partitions and replicas", "disks": "Log directories",
    "groups": "Consumer groups", "transactions": "Transactions", "topics": "Topics", "security": "Security",
}  # fmt: skip


def checks_page() -> str:
    """docs/reference/checks.md"""
    from ottla.health.checks import CHECKS

    lines = [CHECKS_HEAD]
    for module, title in _KINDS.items():
        rows = (
            (f"`{row.name}`", row.severity.name.lower(), row.problem, row.advice, "yes" if row.needs_before else "")
            for row in CHECKS
            if row.find.__module__.endswith(f".{module}")
        )
        header = ("Check", "Severity", "What it means", "What to do", "Two readings")
        lines += [f"## {title}", "", *table(header, rows), ""]
    return "\n".join(lines)


ALERTS = ROOT / "docs/operate/alerts.md"
_RULES_MARKS = ("<!-- rules: written by tools/generate_docs.py -->", "<!-- end of the rules -->")
_VALUES_MARKS = ("<!-- values: written by tools/generate_docs.py -->", "<!-- end of the values -->")


def alerts_page() -> str:
    """docs/operate/alerts.md: written by hand, with the tables of the default rules and of the values"""
    from ottla.edge.monitor.alerts.description import describe_conditions, describe_rules
    from ottla.edge.monitor.alerts.rules_file import DEFAULT, load

    rules = (
        (f"`{row['rule']}`", row["condition"], row["for"], row["keep"], row["severity"])
        for row in describe_rules(load(DEFAULT))
    )
    values = (
        (f"`{row['name']}`", row["of"], row["meaning"]) for row in describe_conditions() if row["kind"] == "value"
    )
    text = ALERTS.read_text(encoding="utf-8")
    text = _between(text, _RULES_MARKS, table(("Rule", "Condition", "for", "keep", "Severity"), rules))
    return _between(text, _VALUES_MARKS, table(("Value", "Of each", "Meaning"), values))


def _between(text: str, marks: tuple[str, str], lines: Iterable[str]) -> str:
    head, found_begin, rest = text.partition(marks[0])
    _, found_end, tail = rest.partition(marks[1])
    assert found_begin and found_end, "the page has lost its marks"
    return "\n".join([f"{head}{marks[0]}", "", *lines, "", f"{marks[1]}{tail}"])


PAGES: dict[str, Callable[[], str]] = {
    "docs/operate/alerts.md": alerts_page,
    "docs/reference/checks.md": checks_page,
    str(CONSOLE): console_page,
    str(MONITOR): monitor_page,
    "docs/reference/settings.md": settings_page,
    "docs/reference/rest.md": rest_page,
}


def broker_rows() -> Iterator[tuple[str, ...]]:
    for row in sorted(BROKER_SETTINGS.values(), key=lambda row: row.name):
        yield (*setting_cells(row), "yes" if row.dynamic else "no", row.documentation)


def topic_rows() -> Iterator[tuple[str, ...]]:
    for row in sorted(TOPIC_SETTINGS.values(), key=lambda row: row.name):
        synonyms = ", ".join(f"`{synonym.name}`" for synonym in row.synonyms)
        yield (*setting_cells(row), synonyms, row.documentation)


def group_rows() -> Iterator[tuple[str, ...]]:
    for row in sorted(GROUP_SETTINGS.values(), key=lambda row: row.name):
        bounds = " to ".join(f"`{bound}`" for bound in bound_names(row.name))
        yield f"`{row.name}`", row.type.name, f"`{broker_name(row.name)}`", bounds, row.documentation


def setting_cells(row: Setting[Any]) -> tuple[str, ...]:
    default = format_value(row.default)
    shown = "not set" if default is None else f"`{default}`" if default else "empty"
    return f"`{row.name}`", row.type.name, shown, row.check.allowed


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    for cells in (header, ("---",) * len(header), *rows):
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def outdated_pages() -> list[str]:
    """The pages whose text is not what the code says now."""
    return [
        name
        for name, render in PAGES.items()
        if not (ROOT / name).exists() or (ROOT / name).read_text(encoding="utf-8") != render()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the reference pages that are made from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a page is out of date")
    check = parser.parse_args().check
    outdated = outdated_pages()
    for name in outdated:
        if check:
            print(f"{name} is out of date; run: python tools/generate_docs.py", file=sys.stderr)
        else:
            (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / name).write_text(PAGES[name](), encoding="utf-8")
            print(f"wrote {name}")
    return 1 if check and outdated else 0


if __name__ == "__main__":
    sys.exit(main())
