"""Scenarios of kafka-groups and kafka-consumer-groups."""

from __future__ import annotations

from tool_actions import committed, member, records
from tool_scenarios import Scenario, Step, file


def _groups(arguments: str) -> Step:
    return Step("kafka-groups", arguments)


_GROUPS = Scenario(
    name="groups",
    is_alone=True,
    steps=[
        _groups("{b} --list"),
        Step("kafka-topics", "{b} --create --topic orders --partitions 2"),
        records("orders", 5),
        committed("simple", "orders", {0: 3}),
        member("classic", "orders"),
        member("a-group-with-a-long-name-that-widens-the-table", "orders", protocol="consumer"),
        _groups("{b} --list"),
        _groups("{b} --list --consumer"),
        _groups("{b} --list --share"),
        _groups("{b} --list --streams"),
        _groups("{b} --list --group-type classic"),
        _groups("{b} --list --group-type Consumer"),
        _groups("{b} --list --group-type nonsense"),
        _groups("{b} --list --protocol consumer"),
        _groups("{b} --list --protocol '' --group-type classic"),
        _groups("{b} --list --consumer --share"),
        _groups("{b}"),
        _groups("--list"),
        _groups(""),
        _groups("--version"),
    ],
)


def _consumers(arguments: str, **more: str) -> Step:
    return Step("kafka-consumer-groups", arguments, **more)  # type: ignore[arg-type]


_LONG = "a-topic-with-a-long-name-that-is-quoted"

_CONSUMER_GROUPS = Scenario(
    name="consumer-groups",
    is_alone=True,
    steps=[
        _consumers(""),
        _consumers("--version"),
        _consumers("{b} --list"),
        Step("kafka-topics", "{b} --create --topic orders --partitions 3"),
        Step("kafka-topics", f"{{b}} --create --topic {_LONG} --partitions 2"),
        records("orders", 5),
        records("orders", 3, partition=1),
        records(_LONG, 2),
        committed("empty", "orders", {0: 3, 2: 0}),
        committed("empty", _LONG, {0: 1}),
        committed("other", "orders", {0: 5, 1: 1, 2: 0}),
        member("classic", "orders"),
        member("modern", _LONG, protocol="consumer", client_id="a-client-with-a-long-id"),
        _consumers("{b} --list"),
        _consumers("{b} --list --state"),
        _consumers("{b} --list --state Stable,empty"),
        _consumers("{b} --list --state nonsense"),
        _consumers("{b} --list --type"),
        _consumers("{b} --list --type consumer --state"),
        _consumers("{b} --list --type nonsense"),
        _consumers("{b} --list --group empty"),
        _consumers("{b} --list --members"),
        _consumers("{b} --describe --group empty"),
        _consumers("{b} --describe --group empty --verbose"),
        _consumers("{b} --describe --group empty --offsets"),
        _consumers("{b} --describe --group empty --members"),
        _consumers("{b} --describe --group empty --members --verbose"),
        _consumers("{b} --describe --group empty --state"),
        _consumers("{b} --describe --group empty --state --verbose"),
        _consumers("{b} --describe --group classic"),
        _consumers("{b} --describe --group classic --verbose"),
        _consumers("{b} --describe --group classic --members"),
        _consumers("{b} --describe --group classic --members --verbose"),
        _consumers("{b} --describe --group classic --state"),
        _consumers("{b} --describe --group classic --state --verbose"),
        _consumers("{b} --describe --group modern"),
        _consumers("{b} --describe --group modern --members"),
        _consumers("{b} --describe --group modern --members --verbose"),
        _consumers("{b} --describe --group modern --state --verbose"),
        _consumers("{b} --describe --group modern --group empty"),
        _consumers("{b} --describe --all-groups"),
        _consumers("{b} --describe --all-groups --state"),
        _consumers("{b} --describe --all-groups --members"),
        _consumers("{b} --describe --group nothing"),
        _consumers("{b} --describe --group nothing --members"),
        _consumers("{b} --describe"),
        _consumers("{b} --describe --group empty --members --offsets"),
        _consumers("{b} --describe --group empty --state Stable"),
        _consumers("{b} --describe --group empty --all-groups"),
        _consumers("{b} --describe --group empty --topic orders"),
        _consumers("{b} --members"),
        _consumers("{b}"),
        _consumers("--list"),
        _consumers("{b} --list --describe --group a"),
        _consumers("--validate-regex 'a.*'"),
        _consumers("--validate-regex '['", differs="the reason is worded by RE2, the library of the broker"),
    ],
)


def _reset(arguments: str) -> Step:
    return _consumers(f"{{b}} --reset-offsets {arguments}")


_RESETS = Scenario(
    name="reset-offsets",
    steps=[
        Step("kafka-topics", "{b} --create --topic res --partitions 3"),
        Step("kafka-topics", f"{{b}} --create --topic {_LONG}"),
        records("res", 5),
        records("res", 3, partition=1),
        records(_LONG, 2),
        committed("res-a", "res", {0: 3, 2: 0}),
        committed("res-a", _LONG, {0: 1}),
        committed("res-b", "res", {0: 1}),
        member("res-busy", "res"),
        _reset("--group res-a --all-topics --to-earliest"),
        _reset("--group res-a --all-topics --to-latest --dry-run"),
        _reset("--group res-a --topic res --to-earliest --dry-run"),
        _reset("--group res-a --topic res:0,1 --to-latest --dry-run"),
        _reset(f"--group res-a --topic res:1 --topic {_LONG} --to-offset 1 --dry-run"),
        _reset("--group res-a --topic res --to-offset 99 --dry-run"),
        _reset("--group res-a --topic res --to-offset -5 --dry-run"),
        _reset("--group res-a --topic res:0 --shift-by -2 --dry-run"),
        _reset("--group res-a --topic res:0 --shift-by 100 --dry-run"),
        _reset("--group res-a --topic res:1 --shift-by 1 --dry-run"),
        _reset("--group res-a --topic res --to-current --dry-run"),
        _reset("--group res-a --topic res --to-datetime 2023-11-14T22:13:20.002 --dry-run"),
        _reset("--group res-a --topic res --to-datetime 2023-11-14T23:13:20.002+01:00 --dry-run"),
        _reset("--group res-a --topic res --to-datetime 2099-01-01T00:00:00.000Z --dry-run"),
        _reset("--group res-a --topic res --to-datetime 2099-01-01 --dry-run"),
        _reset("--group res-a --topic res --to-datetime 2099-13-01T00:00:00.000 --dry-run"),
        _reset("--group res-a --topic res --by-duration P5000D --dry-run"),
        _reset("--group res-a --topic res --by-duration PT0S --dry-run"),
        _reset("--group res-a --topic res --by-duration P1Y --dry-run"),
        _reset("--group res-a --all-topics --to-current --export --dry-run"),
        _reset("--group res-a --group res-b --all-topics --to-current --export --dry-run"),
        file("plan.csv", "res,0,2\nres,1,1\n"),
        file("plans.csv", "res-a,res,0,2\nres-b,res,0,4\n"),
        _reset("--group res-a --from-file {dir}/plan.csv --dry-run"),
        _reset("--group res-a --group res-b --from-file {dir}/plans.csv --dry-run"),
        _reset("--group res-a --from-file {dir}/plans.csv --dry-run"),
        _reset("--group res-b --all-topics --to-latest --execute"),
        _reset("--group res-new --topic res --to-earliest --execute"),
        _consumers("{b} --describe --group res-b"),
        _consumers("{b} --describe --group res-new"),
        _reset("--group res-a --topic nothing --to-latest --dry-run"),
        _reset("--group res-a --topic nothing:0 --to-latest --dry-run"),
        _reset("--group res-a --topic res:7 --to-latest --dry-run"),
        _reset("--group res-a --topic res:x --to-latest --dry-run"),
        _reset("--group res-a --topic res: --to-latest --dry-run"),
        _reset("--group res-busy --topic res --to-latest --execute"),
        _reset("--group res-nothing --all-topics --to-latest --dry-run"),
        _reset("--group res-a --to-latest --dry-run"),
        _reset("--group res-a --all-topics --dry-run"),
        _reset("--group res-a --all-topics --to-latest --to-earliest"),
        _reset("--group res-a --all-topics --to-latest --execute --dry-run"),
        _reset("--all-topics --to-latest"),
        _reset("--group res-a --all-topics --to-offset x"),
        _consumers("{b} --delete-offsets --group res-a --topic res:0"),
        _consumers("{b} --delete-offsets --group res-a --topic res"),
        _consumers(f"{{b}} --delete-offsets --group res-a --topic {_LONG}"),
        _consumers("{b} --delete-offsets --group res-a --topic nothing"),
        _consumers("{b} --delete-offsets --group res-a --topic res:9"),
        _consumers("{b} --delete-offsets --group res-nothing --topic res"),
        _consumers("{b} --delete-offsets --group res-busy --topic res"),
        _consumers("{b} --delete-offsets --group res-a"),
        _consumers("{b} --delete --group res-b"),
        _consumers("{b} --delete --group res-busy"),
        _consumers("{b} --delete --group res-nothing --group res-new"),
        _consumers("{b} --delete --group res-a --topic res"),
        _consumers("{b} --delete"),
    ],
)

SCENARIOS = (_GROUPS, _CONSUMER_GROUPS, _RESETS)
