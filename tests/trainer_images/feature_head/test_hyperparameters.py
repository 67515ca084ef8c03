"""The settings of the feature_head image."""

from __future__ import annotations

import pytest

from app_trainer_sdk.errors import BadJob
from trainer_images.feature_head.hyperparameters import FeatureHeadHyperparameters


def test_shares_must_leave_rows_to_train_on():
    """Shares that hold everything out are refused, with both in the message."""
    with pytest.raises(BadJob, match=r"validation_share 0.5 \+ test_share 0.5"):
        FeatureHeadHyperparameters.read({"validation_share": 0.5, "test_share": 0.5})
