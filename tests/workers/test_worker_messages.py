from __future__ import annotations

import io

import numpy as np
import pytest

from saccade.workers.messages import Message, read_message, write_message


def test_round_trip() -> None:
    stream = io.BytesIO()
    arrays = {"none": np.empty(0, np.uint16), "numbers": np.arange(9)[::2], "bytes": np.arange(5, dtype=np.uint8)}
    write_message(stream, Message({"text": "ä\n", "nested": {"list": [1, None, 0.5]}}, arrays))
    write_message(stream, Message())
    stream.seek(0)
    found = read_message(stream)
    assert found is not None
    assert found.values == {"text": "ä\n", "nested": {"list": [1, None, 0.5]}}
    for name, array in arrays.items():
        assert found.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(found.arrays[name], array)
    assert read_message(stream) == Message()
    assert read_message(stream) is None


def test_truncated_message_is_an_error() -> None:
    stream = io.BytesIO()
    write_message(stream, Message({}, {"numbers": np.arange(10)}))
    for length in range(1, len(stream.getvalue())):
        with pytest.raises(EOFError):
            read_message(io.BytesIO(stream.getvalue()[:length]))
