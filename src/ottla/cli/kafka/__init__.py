"""kafka: the commands of Apache Kafka, such as `kafka-topics`, with its options, output and exit codes.

`ottla kafka NAME` and the scripts of `ottla kafka install` run them. `commands` has the table of names; `tool` says
what a tool is; `options` reads its flags; `connection` opens its cluster. Each tool is a module with a `TOOL` (or a
`main`) of its own, imported when its name is used. Only `command` and `install` import click, because most of the time
of a tool is its start. The package may import what the other commands import.
"""
