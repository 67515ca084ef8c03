"""The trainer image ``example-digits``."""
