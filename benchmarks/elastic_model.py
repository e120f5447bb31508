"""The model of an elastic worker's loop, and its gradient: layer by layer, and in preallocated memory."""

from __future__ import annotations

from typing import Final

import numpy as np

from benchmarks.elastic_records import BATCH, CLASSES, PIXELS, Batch
from spanwise.components.training.elastic.arrays import Arrays

DECAY: Final = 1e-4


def create_model(hidden: int, table: int) -> Arrays:
    """`hidden` is the units of the hidden layer, `table` numbers more that only decay."""
    random = np.random.default_rng(1)
    values = {
        "hidden": random.normal(0, 0.01, (PIXELS, hidden)),
        "hidden_bias": np.zeros(hidden),
        "classes": random.normal(0, 0.1, (hidden, CLASSES)),
        "classes_bias": np.zeros(CLASSES),
        "table": random.normal(0, 1, table),
    }
    return {name: value.astype(np.float32) for name, value in values.items()}


def eager(parameters: Arrays, batch: Batch) -> Arrays:
    """The gradient, layer by layer: each operation allocates an array of 64 bits, NumPy's default."""
    features, labels = batch
    w = {name: value.astype(np.float64) for name, value in parameters.items()}
    before = features @ w["hidden"] + w["hidden_bias"]
    hidden = np.maximum(before, 0)
    scores = hidden @ w["classes"] + w["classes_bias"]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances = powers / powers.sum(axis=1, keepdims=True)
    wrong = (chances - np.eye(CLASSES)[labels]) / len(labels)
    back = (wrong @ w["classes"].T) * (before > 0)
    gradient = {
        "hidden": features.T @ back,
        "hidden_bias": back.sum(axis=0),
        "classes": hidden.T @ wrong,
        "classes_bias": wrong.sum(axis=0),
        "table": np.zeros_like(w["table"]),
    }
    return {name: (value + DECAY * w[name]).astype(np.float32) for name, value in gradient.items()}


class CompiledStep:
    """The same gradient in preallocated memory: BLAS of 32 bits. No compiler; it is what one makes of such a step."""

    def __init__(self, parameters: Arrays) -> None:
        units = parameters["hidden"].shape[1]
        self._gradient = {name: np.empty_like(value) for name, value in parameters.items()}
        self._hidden = np.empty((BATCH, units), np.float32)
        self._back = np.empty((BATCH, units), np.float32)
        self._scores = np.empty((BATCH, CLASSES), np.float32)
        self._rows = np.arange(BATCH)

    def __call__(self, parameters: Arrays, batch: Batch) -> Arrays:
        features, labels = batch
        gradient, hidden, back, scores = self._gradient, self._hidden, self._back, self._scores
        np.matmul(features, parameters["hidden"], out=hidden)
        hidden += parameters["hidden_bias"]
        np.maximum(hidden, 0, out=hidden)
        np.matmul(hidden, parameters["classes"], out=scores)
        scores += parameters["classes_bias"]
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        scores[self._rows, labels] -= 1
        scores /= BATCH
        np.matmul(scores, parameters["classes"].T, out=back)
        back *= hidden > 0
        np.matmul(features.T, back, out=gradient["hidden"])
        np.matmul(hidden.T, scores, out=gradient["classes"])
        np.sum(back, axis=0, out=gradient["hidden_bias"])
        np.sum(scores, axis=0, out=gradient["classes_bias"])
        gradient["table"].fill(0)
        for name, value in gradient.items():
            np.add(value, np.float32(DECAY) * parameters[name], out=value)
        return gradient
