"""The other side of the contract on an author's desk: a small control plane, standard library only.

It hears events, keeps uploads in a folder, serves what trainers offer, and misbehaves when asked to, so that
every rule of the contract can be seen by hand. The tests use the same server. Not for the open internet.
"""

from app_trainer_sdk.listener.desk import Desk, Fault
from app_trainer_sdk.listener.outputs import Outputs
from app_trainer_sdk.listener.server import Listener
from app_trainer_sdk.listener.store import Store

__all__ = ["Desk", "Fault", "Listener", "Outputs", "Store"]
