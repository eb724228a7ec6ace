"""pipeline: declared flows between topics and tables, and the supervisor that runs them. Knows: spark, client, model.

Never imports the broker's packages. A declaration is read and checked without Spark: `load` for files, `Pipeline` for
Python.
"""

from ottla.pipeline.declaration import Declaration
from ottla.pipeline.decorators import Pipeline
from ottla.pipeline.environments import Arguments
from ottla.pipeline.load import load
from ottla.pipeline.problems import BadDeclaration, Problem

__all__ = ["Arguments", "BadDeclaration", "Declaration", "Pipeline", "Problem", "load"]
