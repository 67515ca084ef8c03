"""What leaves a job: artifacts when it is done, checkpoints while it trains; how the next machine gets those.

Torch-free; the supervisor calls it. How bytes travel is the business of ``transfers``.
"""
