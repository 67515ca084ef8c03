"""The short way of operators on tensors without data gives what torch's fake mode gives."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from app_trainer_sdk.training import shape_operators
from app_trainer_sdk.training.shape_operators import on_shapes

aten = torch.ops.aten
CPU = {"layout": torch.strided, "device": torch.device("cpu")}
CALLS = [
    (aten.view.default, ([3, 8],), {}),
    (aten._unsafe_view.default, ([24],), {}),
    (aten.t.default, (), {}),
    (aten.transpose.int, (0, -1), {}),
    (aten.slice.Tensor, (1, 1, 5, 2), {}),
    (aten.unsqueeze.default, (1,), {}),
    (aten.expand.default, ([2, 4, 6],), {}),
    (aten.select.int, (1, -2), {}),
    (aten.detach.default, (), {}),
    (aten._to_copy.default, (), {"dtype": torch.bfloat16}),
    (aten._to_copy.default, (), {"dtype": torch.float64, **CPU}),
]


def told(tensor):
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device, type(tensor)


@pytest.mark.parametrize(("function", "arguments", "keywords"), CALLS, ids=lambda each: str(each)[:40])
def test_shapes_strides_and_shared_memory_are_those_of_the_fake_mode(function, arguments, keywords):
    with FakeTensorMode() as mode:
        given = torch.empty(4, 6)
    made, expected = on_shapes(function, (given, *arguments), keywords), function(given, *arguments, **keywords)

    assert told(made) == told(expected)
    assert made.fake_mode is mode
    memory = given.untyped_storage()._cdata
    assert (made.untyped_storage()._cdata == memory) == (expected.untyped_storage()._cdata == memory)


def test_a_product_makes_memory():
    with FakeTensorMode():
        left, right = torch.empty(4, 6), torch.empty(5, 6).t()
    made = on_shapes(aten.mm.default, (left, right), {})

    assert told(made) == told(aten.mm.default(left, right))
    assert made.untyped_storage().nbytes() == 4 * 5 * 4


def test_every_operator_is_compared():
    assert {function for function, *_ in CALLS} | {aten.mm.default} == shape_operators._OPERATORS


def test_the_fake_mode_is_asked_where_more_than_shapes_matter():
    with FakeTensorMode(allow_non_fake_inputs=True):
        given, constant = torch.empty(4, 6), torch.empty(2)
    constant.constant = torch.ones(2)  # a value that the fake mode remembers
    others = [
        (aten.add.Tensor, (given, given), {}),
        (aten.view.default, (torch.ones(4), [2, 2]), {}),
        (aten.mm.default, (given, torch.ones(6, 2)), {}),
        (aten.view.default, (constant, [2, 1]), {}),
        (aten._to_copy.default, (given,), {"device": torch.device("meta")}),
        (aten._to_copy.default, (given,), {"memory_format": torch.contiguous_format}),
    ]

    assert [on_shapes(*each) for each in others] == [NotImplemented] * len(others)
