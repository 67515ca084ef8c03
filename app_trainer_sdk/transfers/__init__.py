"""Bytes that come and go: downloads, archives, uploads, and what all transfers share. Torch-free.

Shared by both directions: ``addresses`` (which hosts, and URLs without their secrets), ``web`` (one pool of
connections), ``pauses`` (clock, jitter, ``Retry-After``), ``progress``, ``owner`` (who is still alive).
Nothing here knows what a file means.
"""
