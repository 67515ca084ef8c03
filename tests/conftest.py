"""Owns how hypothesis runs here: its time limits say how busy the machine is, and nothing of the code."""

from hypothesis import HealthCheck, settings

settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")
