# ruff: noqa: PTH123,RUF015 -- runs on Python 3.10 in an environment of its own
"""What TensorFlow Data Validation, Transform and Model Analysis say of some rows, as JSON. Runs in their environment.

python tfx_figures.py DATA.parquet EARLIER.parquet SCORES.parquet FIGURES.json
"""

import json
import sys
import tempfile

import apache_beam as beam
import pandas as pd
import tensorflow as tf
import tensorflow_data_validation as tfdv
import tensorflow_model_analysis as tfma
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2, statistics_pb2
from tensorflow_transform.tf_metadata import dataset_metadata, schema_utils

QUANTILES = 10
BUCKETS = 8
TOP = 30


def statistics(rows, weight=None):
    """The figures of each feature, by TFDV."""
    options = tfdv.StatsOptions(
        num_quantiles_histogram_buckets=QUANTILES, num_histogram_buckets=10, num_top_values=TOP,
        num_rank_histogram_buckets=1000, epsilon=0.001, weight_feature=weight,
    )  # fmt: skip
    return tfdv.generate_statistics_from_dataframe(rows, stats_options=options, n_jobs=1)


def describe(found):
    """Plain values of the statistics of TFDV."""
    figures = {}
    for feature in found.datasets[0].features:
        name = feature.path.step[0]
        if feature.type == statistics_pb2.FeatureNameStatistics.STRING:
            own = feature.string_stats
            figures[name] = {
                "unique": own.unique,
                "average_length": own.avg_length,
                "top": [[each.value, each.frequency] for each in own.top_values],
                "weighted_top": [[each.value, each.frequency] for each in own.weighted_string_stats.top_values],
            }
        else:
            own = feature.num_stats
            figures[name] = {
                "mean": own.mean, "std": own.std_dev, "zeros": own.num_zeros, "least": own.min, "greatest": own.max,
                "median": own.median,
                "nan": sum(each.num_nan for each in own.histograms[:1]),
                "bins": [[b.low_value, b.high_value, b.sample_count] for b in own.histograms[0].buckets],
                "quantiles": [b.high_value for h in own.histograms if h.type == h.QUANTILES for b in h.buckets],
                "weighted_mean": own.weighted_numeric_stats.mean, "weighted_std": own.weighted_numeric_stats.std_dev,
                "weighted_median": own.weighted_numeric_stats.median,
                "weighted_quantiles": [
                    b.high_value for h in own.weighted_numeric_stats.histograms if h.type == h.QUANTILES
                    for b in h.buckets
                ],
                "weighted_bins": [
                    [b.low_value, b.high_value, b.sample_count] for h in own.weighted_numeric_stats.histograms
                    if h.type == h.STANDARD for b in h.buckets
                ],
            }  # fmt: skip
        common = own.common_stats
        figures[name] |= {
            "present": common.num_non_missing,
            "missing": common.num_missing,
            "weighted_missing": common.weighted_common_stats.num_missing,
        }
    return figures


def drift(now, before):
    """The distances of two spans, by TFDV's drift comparators."""
    schema = tfdv.infer_schema(now, infer_feature_shape=False)
    found = {}
    for kind in ("jensen_shannon_divergence", "infinity_norm"):
        for feature in schema.feature:
            feature.drift_comparator.Clear()
            numeric = feature.type in (schema_pb2.FLOAT, schema_pb2.INT)
            if kind == "jensen_shannon_divergence":
                feature.drift_comparator.jensen_shannon_divergence.threshold = 1e-9
            elif not numeric:
                feature.drift_comparator.infinity_norm.threshold = 1e-9
        anomalies = tfdv.validate_statistics(now, schema, previous_statistics=before)
        for info in anomalies.drift_skew_info:
            for measured in info.drift_measurements:
                found.setdefault(info.path.step[0], {})[kind] = measured.value
    return found


def analyzers(rows):
    """What TensorFlow Transform learns, and what it makes of the first rows."""
    spec = {
        "fare": tf.io.FixedLenFeature([], tf.float32),
        "whole": tf.io.FixedLenFeature([], tf.int64),
        "who": tf.io.FixedLenFeature([], tf.string),
        "weight": tf.io.FixedLenFeature([], tf.float32),
    }
    kept = rows[["fare", "whole", "who", "weight"]].dropna()
    kept = kept[kept["fare"].abs() < float("inf")]

    def preprocess(columns):
        return {
            "mean": tft.mean(columns["fare"]) + 0 * columns["fare"],
            "var": tft.var(columns["fare"]) + 0 * columns["fare"],
            "least": tft.min(columns["fare"]) + 0 * columns["fare"],
            "greatest": tft.max(columns["fare"]) + 0 * columns["fare"],
            "sum": tft.sum(columns["whole"]) + 0 * columns["whole"],
            "size": tft.size(columns["whole"]) + 0 * columns["whole"],
            "z": tft.scale_to_z_score(columns["fare"]),
            "unit": tft.scale_to_0_1(columns["fare"]),
            "boundaries": tf.tile(
                tft.quantiles(columns["fare"], BUCKETS, epsilon=0.0001), [tf.shape(columns["fare"])[0], 1]
            ),
            "weighted_boundaries": tf.tile(
                tft.quantiles(columns["fare"], BUCKETS, epsilon=0.0001, weights=columns["weight"]),
                [tf.shape(columns["fare"])[0], 1],
            ),
            "bucket": tft.bucketize(columns["whole"], BUCKETS, epsilon=0.0001),
            "term": tft.compute_and_apply_vocabulary(columns["who"], top_k=40, num_oov_buckets=1, vocab_filename="who"),
            "weighted_term": tft.apply_vocabulary(
                columns["who"],
                tft.vocabulary(columns["who"], top_k=40, weights=columns["weight"], vocab_filename="weighted"),
                default_value=-1,
            ),
        }

    metadata = dataset_metadata.DatasetMetadata(schema_utils.schema_from_feature_spec(spec))
    with tempfile.TemporaryDirectory() as folder, tft_beam.Context(temp_dir=folder):
        (out, _), graph = (kept.to_dict("records"), metadata) | tft_beam.AnalyzeAndTransformDataset(preprocess)
        output = tempfile.mkdtemp(dir=folder)
        _ = graph | tft_beam.WriteTransformFn(output)
        read = tft.TFTransformOutput(output)
        words = {name: [word.decode() for word in read.vocabulary_by_name(name)] for name in ("who", "weighted")}
    first = out[0]
    return {
        **{name: float(first[name]) for name in ("mean", "var", "least", "greatest", "sum", "size")},
        "boundaries": [float(each) for each in first["boundaries"]],
        "weighted_boundaries": [float(each) for each in first["weighted_boundaries"]],
        "z": [float(row["z"]) for row in out[:200]],
        "unit": [float(row["unit"]) for row in out[:200]],
        "bucket": [int(row["bucket"]) for row in out],
        "term": [int(row["term"]) for row in out],
        "words": words["who"],
        "weighted_words": words["weighted"],
    }


METRICS = """
    model_specs {{ label_key: "label" prediction_key: "score" }}
    slicing_specs {{ }}
    slicing_specs {{ feature_keys: ["who"] }}
    {weight}
    metrics_specs {{
      metrics {{ class_name: "ExampleCount" }}
      metrics {{ class_name: "AUC" }}
      metrics {{ class_name: "AUCPrecisionRecall" }}
      metrics {{ class_name: "BinaryAccuracy" }}
      metrics {{ class_name: "Precision" }}
      metrics {{ class_name: "Recall" }}
      metrics {{ class_name: "BinaryCrossentropy" }}
      metrics {{ class_name: "Calibration" }}
      metrics {{ class_name: "MeanLabel" }}
      metrics {{ class_name: "MeanPrediction" }}
      metrics {{ class_name: "MeanSquaredError" }}
      metrics {{ class_name: "MeanAbsoluteError" }}
      metrics {{ class_name: "RSquared" module: "tensorflow_model_analysis.metrics" }}
    }}
"""


def metrics(rows, weight=None):
    """The metrics of scores, overall and by slice, by TFMA."""
    text = METRICS.format(weight="").replace(
        'prediction_key: "score"', f'prediction_key: "score" example_weight_key: "{weight}"' if weight else
        'prediction_key: "score"',
    )  # fmt: skip
    text = "\n".join(line for line in text.splitlines() if "RSquared" not in line)
    config = text_format.Parse(text, tfma.EvalConfig())
    result = tfma.analyze_raw_data(rows, config)
    found = {}
    for key, by_output in result.slicing_metrics:
        own = by_output[""][""]
        found["".join(str(value) for _, value in key) or "all"] = {
            name: list(value.values())[0] for name, value in own.items()
        }
    return found


def main(data, earlier, scores, out):
    """Writes all figures."""
    rows, before, scored = (pd.read_parquet(path) for path in (data, earlier, scores))
    now, then = statistics(rows), statistics(before)
    figures = {
        "versions": {"tfdv": tfdv.__version__, "tft": tft.__version__, "tfma": tfma.__version__},
        "statistics": describe(now),
        "weighted": describe(statistics(rows, "weight")),
        "drift": drift(now, then),
        "analyzers": analyzers(rows),
        "metrics": metrics(scored),
        "weighted_metrics": metrics(scored, "weight"),
    }
    with open(out, "w") as file:
        json.dump(figures, file, indent=1)


if __name__ == "__main__":
    beam.logging.getLogger().setLevel("ERROR") if hasattr(beam, "logging") else None
    main(*sys.argv[1:])
