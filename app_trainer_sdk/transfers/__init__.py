"""Bytes that come and go: downloads, archives, uploads, and what all transfers share. Torch-free.

Shared by both directions: ``addresses`` (which hosts, and URLs without their secrets), ``web`` (one pool of
connections), ``pauses`` (clock, jitter, ``Retry-After``), ``progress``. Nothing here knows what a file means:
``inputs``, ``weights`` and ``outputs`` do, which call this; files go into ``cache``, which knows nothing of it.
"""
