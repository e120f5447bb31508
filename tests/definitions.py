"""The table of definitions: with which peer each figure is compared, and by which test.

python -m tests.definitions writes it into docs/reference/definitions.md.
"""

from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference/definitions.md"
BEGIN, END = "<!-- written by `python -m tests.definitions` -->", "<!-- end -->"

STATISTICS = "tests/components/statistics/test_definitions.py"
SUMS = "tests/components/statistics/test_accumulators.py"
WEIGHTS = "tests/components/statistics/test_weights.py"
DISTANCES = "tests/components/statistics/test_distances.py"
COLUMNS = "tests/components/statistics/test_span_statistics.py"
TRANSFORM = "tests/components/transform/test_definitions.py"
WEIGHTED = "tests/components/transform/test_weighted.py"
GRAPH = "tests/components/transform/test_graph.py"
METRICS = "tests/components/evaluation/test_metrics.py"
MEASURED = "tests/components/evaluation/test_measurement.py"
SORTED = "tests/components/evaluation/test_out_of_core.py"
TFX = "tests/peers/test_tfx.py"
FORMATS = "tests/components/ingest/test_format_law.py"
TEXTS = "tests/components/ingest/readers/test_text_law.py"

#: What the module of a test says if it compares with a peer.
PEERS = {
    "NumPy": "np.", "pyarrow": "pyarrow", "Polars": "polars", "SciPy": "scipy", "scikit-learn": "sklearn",
    "exact fractions": "Fraction", "calculus": "calculus", "TFDV": "tfdv", "TFT": "tft", "TFMA": "tfma",
    "fastavro": "fastavro", "protobuf": "serialized", "sqlite3": "sqlite3", "csv": "csv", "json": "json",
    "plain counting": "Counter", "pinned values": "these numbers hold",
}  # fmt: skip

#: By page and figure, as the page names it: the tests by peer.
DEFINITIONS: dict[str, dict[str, dict[str, tuple[str, str]]]] = {
    "statistics.md": {
        "count, missing, NaN, infinities, zeros": {
            "pyarrow": (STATISTICS, "test_counts_are_those_of_pyarrow_and_polars"),
            "Polars": (STATISTICS, "test_counts_are_those_of_pyarrow_and_polars"),
            "TFDV": (TFX, "test_numbers_are_those_of_tfdv"),
        },
        "least, greatest": {
            "NumPy": (STATISTICS, "test_extrema_and_moments_are_numpys"),
            "TFDV": (TFX, "test_numbers_are_those_of_tfdv"),
        },
        "mean": {
            "exact fractions": (SUMS, "test_moments_are_exact_and_do_not_depend_on_the_batches"),
            "NumPy": (STATISTICS, "test_extrema_and_moments_are_numpys"),
            "TFDV": (TFX, "test_numbers_are_those_of_tfdv"),
        },
        "std": {
            "exact fractions": (SUMS, "test_moments_are_exact_and_do_not_depend_on_the_batches"),
            "NumPy": (STATISTICS, "test_extrema_and_moments_are_numpys"),
            "TFDV": (TFX, "test_numbers_are_those_of_tfdv"),
        },
        "quantile of share s": {
            "NumPy": (STATISTICS, "test_quantiles_are_numpys"),
            "TFDV": (TFX, "test_quantiles_are_within_the_errors_of_both"),
        },
        "share of a histogram's bin": {
            "NumPy": (STATISTICS, "test_histograms_are_numpys_with_the_other_edge"),
            "TFDV": (TFX, "test_histograms_are_within_the_errors_of_both"),
        },
        "length": {
            "Polars": (STATISTICS, "test_lengths_are_those_of_polars"),
            "TFDV": (TFX, "test_lengths_of_texts_are_those_of_tfdv"),
        },
        "distinct": {
            "NumPy": (STATISTICS, "test_distinct_values_are_those_of_polars"),
            "Polars": (STATISTICS, "test_distinct_values_are_those_of_polars"),
            "TFDV": (TFX, "test_frequent_values_are_those_of_tfdv"),
        },
        "frequent values": {
            "Polars": (STATISTICS, "test_frequent_values_are_those_of_polars"),
            "plain counting": (COLUMNS, "test_estimates_of_a_long_tail_bound_the_truth"),
            "TFDV": (TFX, "test_frequent_values_are_those_of_tfdv"),
        },
        "Jensen-Shannon divergence": {
            "SciPy": (STATISTICS, "test_distances_are_those_of_numpy_and_scipy"),
            "calculus": (DISTANCES, "test_two_normals_are_apart_as_calculus_says"),
            "TFDV": (TFX, "test_drift_of_numbers_is_smaller_than_in_the_bins_of_tfdv"),
        },
        "greatest change of a share": {
            "NumPy": (STATISTICS, "test_distances_are_those_of_numpy_and_scipy"),
            "TFDV": (TFX, "test_drift_by_the_greatest_difference_is_that_of_tfdv"),
        },
        "weighted `mean`, `std`": {
            "NumPy": (COLUMNS, "test_weights_count_in_means_and_shares"),
            "TFDV": (TFX, "test_weighted_numbers_are_those_of_tfdv"),
        },
        "weighted `missing_share`": {
            "Polars": (STATISTICS, "test_weighted_figures_are_numpys"),
            "TFDV": (TFX, "test_the_weight_of_missing_values_is_that_of_tfdv"),
        },
        "weighted `quantile`": {
            "NumPy": (WEIGHTS, "test_few_values_have_the_quantiles_of_numpy"),
            "TFDV": (TFX, "test_weighted_quantiles_are_within_the_errors_of_both"),
        },
        "weighted `shares_between`": {"NumPy": (STATISTICS, "test_weighted_figures_are_numpys")},
        "weighted `top`": {
            "Polars": (STATISTICS, "test_weighted_figures_are_numpys"),
            "TFDV": (TFX, "test_frequent_values_are_those_of_tfdv"),
        },
    },
    "transform.md": {
        "`count`": {
            "NumPy": (TRANSFORM, "test_single_values_are_numpys"),
            "TFT": (TFX, "test_what_transform_makes_is_what_tft_makes"),
        },
        "`total`": {
            "NumPy": (TRANSFORM, "test_single_values_are_numpys"),
            "TFT": (TFX, "test_what_transform_makes_is_what_tft_makes"),
        },
        "`mean`, `standard_deviation`": {
            "exact fractions": (SUMS, "test_moments_are_exact_and_do_not_depend_on_the_batches"),
            "NumPy": (TRANSFORM, "test_single_values_are_numpys"),
            "TFT": (TFX, "test_what_transform_learns_is_what_tft_learns"),
        },
        "`minimum`, `maximum`": {
            "NumPy": (TRANSFORM, "test_single_values_are_numpys"),
            "TFT": (TFX, "test_what_transform_makes_is_what_tft_makes"),
        },
        "`scale_to_z_score`": {
            "scikit-learn": (TRANSFORM, "test_scaling_is_scikit_learns"),
            "TFT": (TFX, "test_what_transform_makes_is_what_tft_makes"),
        },
        "`scale_to_0_1`": {
            "scikit-learn": (TRANSFORM, "test_scaling_is_scikit_learns"),
            "TFT": (TFX, "test_what_transform_makes_is_what_tft_makes"),
        },
        "`impute_mean`": {"scikit-learn": (TRANSFORM, "test_missing_values_are_filled_as_scikit_learn_does")},
        "`quantile(x, s)`": {
            "NumPy": (TRANSFORM, "test_single_values_are_numpys"),
            "TFT": (TFX, "test_what_transform_learns_is_what_tft_learns"),
        },
        "`bucketize(x, n)`": {
            "scikit-learn": (TRANSFORM, "test_buckets_are_those_of_quantiles_but_for_values_on_a_boundary"),
            "TFT": (TFX, "test_what_transform_makes_is_what_tft_makes"),
        },
        "`vocabulary`": {
            "plain counting": (TRANSFORM, "test_terms_are_numbered_by_count_then_by_their_bytes"),
            "TFT": (TFX, "test_what_transform_makes_is_what_tft_makes"),
        },
        "`one_hot`": {"scikit-learn": (TRANSFORM, "test_one_hot_is_scikit_learns_but_for_the_order")},
        "`hash_buckets`, `cross`": {"pinned values": (GRAPH, "test_hash_buckets_never_drift")},
        "`list.sum()`, `list.mean()`": {"NumPy": (TRANSFORM, "test_sums_of_lists_are_numpys")},
        "`x / y`": {
            "NumPy": (GRAPH, "test_a_divisor_that_a_condition_chooses_divides_alike_in_any_number_of_rows"),
        },
        "with `weight=`": {
            "NumPy": (WEIGHTED, "test_weighted_figures_are_numpys"),
            "TFT": (TFX, "test_what_transform_makes_is_what_tft_makes"),
        },
    },
    "components.md": {
        name: {
            "scikit-learn": (METRICS, "test_classification_agrees_with_scikit_learn"),
            "TFMA": (TFX, "test_metrics_are_those_of_tfma"),
        }
        for name in ("`auc`", "`pr_auc`", "`log_loss`", "`accuracy`")
    }
    | {
        "`count`": {
            "NumPy": (METRICS, "test_classification_agrees_with_scikit_learn"),
            "TFMA": (TFX, "test_metrics_are_those_of_tfma"),
        },
        "`calibration`": {
            "NumPy": (METRICS, "test_classification_agrees_with_scikit_learn"),
            "TFMA": (TFX, "test_metrics_are_those_of_tfma"),
        },
        "`precision`, `recall`, `f1`": {
            "scikit-learn": (METRICS, "test_classification_agrees_with_scikit_learn"),
            "TFMA": (TFX, "test_metrics_are_those_of_tfma"),
        },
        "`macro_f1`, `micro_f1`": {"scikit-learn": (MEASURED, "test_classes_are_measured_as_scikit_learn_does")},
        "`mae`, `rmse`": {
            "scikit-learn": (METRICS, "test_regression_agrees_with_scikit_learn"),
            "TFMA": (TFX, "test_metrics_are_those_of_tfma"),
        },
        "`r2`": {"scikit-learn": (METRICS, "test_regression_agrees_with_scikit_learn")},
        "with `weight=`": {
            "scikit-learn": (MEASURED, "test_weights_count_as_scikit_learn_has_them"),
            "TFMA": (TFX, "test_metrics_are_those_of_tfma"),
        },
        "beyond `memory_rows`": {"scikit-learn": (SORTED, "test_files_give_what_memory_gives")},
    },
    "sources.md": {
        "CSV": {"csv": (TEXTS, "test_csv_comes_out_as_the_csv_module_and_python_read_it")},
        "JSON lines": {"json": (TEXTS, "test_json_lines_come_out_as_the_json_module_reads_them")},
        "Parquet, Arrow": {"pyarrow": (FORMATS, "test_a_table_of_any_types_is_ingested_as_it_is")},
        "Avro": {"fastavro": (FORMATS, "test_avro_is_ingested_as_fastavro_writes_it")},
        "TFRecord": {"protobuf": (FORMATS, "test_records_are_ingested_as_protobuf_reads_them")},
        "SQLite": {"sqlite3": (FORMATS, "test_an_answer_of_sqlite_has_the_values_of_its_rows")},
    },
}

LINKS = {
    "statistics.md": "Statistics", "transform.md": "Transform", "components.md": "Evaluator", "sources.md": "Sources"
}  # fmt: skip
ANCHORS = {
    "statistics.md": "#definitions-and-errors", "transform.md": "#definitions-and-errors", "components.md": "#evaluator",
    "sources.md": "#what-becomes-of-each-type",
}  # fmt: skip


def table() -> str:
    """The table as it stands on the page."""
    lines = ["| page | figure or format | peer | test |", "|---|---|---|---|"]
    for name, figures in DEFINITIONS.items():
        first = f"[{LINKS[name]}]({name}{ANCHORS[name]})"
        for figure, checks in figures.items():
            shown = figure
            for peer, (file, test) in checks.items():
                lines.append(f"| {first} | {shown} | {peer} | `{file.removeprefix('tests/')}::{test}` |")
                first = shown = ""
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with the table of today."""
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
