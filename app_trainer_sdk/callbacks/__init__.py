"""How events travel: where they go, how they are signed and answered, and what of them lies on disk unsent.

Torch-free, and never on a training thread. Nothing in here makes an event or knows how a run goes.
"""
