"""pipeline: declared flows between topics and tables, and the supervisor that runs them. Knows: spark, client, model.

Never: the broker wing.
"""
