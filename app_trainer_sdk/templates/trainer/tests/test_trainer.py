"""Every promise of the contract, each a test of its own."""

from app_trainer_sdk.testing import TrainerConformance


class TestExampleDigitsTrainer(TrainerConformance):
    """What ``app-trainer check`` proves, for pytest."""

    trainer = "example_digits.trainer:ExampleDigitsTrainer"
    hyperparameters = {"rows": 100}  # noqa: RUF012
