"""A checkpoint is verified when it is read: training never goes on from rotten parameters."""

import numpy as np

from spanwise.components.training.elastic import checkpoint


def test_a_checkpoint_with_any_flipped_bit_is_as_good_as_none(tmp_path, caplog):
    """The job begins anew, and the log says why."""
    file = tmp_path / "job"
    checkpoint.write(file, {"epoch": 2}, {"w": np.arange(3.0)})
    facts, arrays = checkpoint.read(file)
    assert (facts, arrays["w"].tolist()) == ({"epoch": 2}, [0.0, 1.0, 2.0])
    whole = file.read_bytes()

    for bit in range(0, 8 * len(whole), 3):
        rotten = bytearray(whole)
        rotten[bit // 8] ^= 1 << bit % 8
        file.write_bytes(rotten)
        assert checkpoint.read(file) is None, bit
    file.write_bytes(whole[:-1])
    assert checkpoint.read(file) is None

    assert "checkpoint-damaged" in caplog.text
