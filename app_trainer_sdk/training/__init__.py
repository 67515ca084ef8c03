"""The rank: everything that imports torch. Nothing outside this package may import it, but for the named doors.

In the order of a job: ``opening`` (job to handle and plan), ``phases`` and ``ledger`` (preparation, measured),
``order`` → ``feed`` → ``supervised`` (what is trained, in which order, how), ``wrap`` ``optim`` ``schedule``
(what an update is made of), ``drive`` with ``metrics`` and ``checkpoint`` (what happens between two updates),
``rank`` and ``replay`` (the processes).
"""
