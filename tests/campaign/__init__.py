"""The library of the campaigns: long runs that kill, pause, cut off and overload processes, and check the results.

`catalogue.py` lists all campaigns; `make campaign` prints the list and runs one of them by its name. The modules here
are shared by all campaigns and by the short parts of them in `make test`: faults of disks and processes, workloads and
what their clients saw, checks of that, and the report. They import `ottla.testing` and no test.
"""
