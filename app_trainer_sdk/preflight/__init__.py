"""Preflight: what this machine is, said in seconds and before any download; torch-free, no network."""
