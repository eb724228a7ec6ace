"""sdp: a declaration as a project for Spark Declarative Pipelines. Knows: the declaration and its graph. Pure text.

`export.py` converts the flows, `project.py` writes the files. Spark is neither imported nor asked.
"""
