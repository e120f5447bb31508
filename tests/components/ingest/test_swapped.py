"""Nodes that swap their names: neither reads the source of the other into its own history."""

import sqlite3

import pytest

from spanwise.components import ExampleGen, QueryExampleGen
from tests.components.flow import Bench


class Sources:
    """Files and tables of two cities, with the same columns, and nodes that ingest them by any name."""

    def __init__(self, folder):
        self.folder = folder
        self.bench = Bench(folder / "root")
        self.database = f"sqlite:///{folder / 'cities.db'}"
        with sqlite3.connect(folder / "cities.db") as connection:
            for city in ("oslo", "rome"):
                connection.execute(f"CREATE TABLE {city} (x TEXT, day INTEGER)")
                connection.executemany(f"INSERT INTO {city} VALUES (?, ?)", [(f"{city}{s}", s) for s in (1, 2, 3)])
                for span in (1, 2, 3):
                    self.arrive("data", city, span)
        connection.close()

    def arrive(self, top, city, span):
        file = self.folder / top / city / f"{span}.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"x\n{city}{span}\n")

    def files(self, name, city, top="data"):
        return ExampleGen(pattern=f"{self.folder}/{top}/{city}/{{SPAN}}.csv", name=name)

    def table(self, name, city):
        query = f"SELECT x FROM {city} WHERE day = {{SPAN}}"
        return QueryExampleGen(connection=self.database, query=query, calendar="number", name=name)

    def run(self, span, *nodes):
        """The errors by node."""
        executions = self.bench.run(*nodes, span=span).executions
        return {name: execution.error for name, execution in executions.items() if execution.error}


@pytest.fixture
def sources(tmp_path):
    return Sources(tmp_path)


@pytest.mark.parametrize("kind", ["files", "table"])
def test_nodes_that_swap_their_names_ingest_nothing(sources, kind):
    """Each would go on with the spans of the other. Both are refused until the names are new, or as they were."""
    make = getattr(sources, kind)
    sources.run(1, make("Oslo", "oslo"), make("Rome", "rome"))

    swapped = sources.run(2, make("Oslo", "rome"), make("Rome", "oslo"))
    again = sources.run(2, make("Oslo", "rome"))
    renamed = sources.run(2, make("City1", "rome"), make("City2", "oslo"))
    restored = sources.run(2, make("Oslo", "oslo"), make("Rome", "rome"))

    assert "which was that of Rome in run 1" in swapped["Oslo"]
    assert "which was that of Oslo in run 1" in swapped["Rome"]
    assert "a name that is not in use yet" in again["Oslo"]
    assert renamed == restored == {}


def test_a_source_that_has_moved_is_ingested(sources):
    """A pattern may be edited: what it names is that of no other node."""
    sources.run(1, sources.files("Oslo", "oslo"), sources.files("Rome", "rome"))
    for city in ("oslo", "rome"):
        sources.arrive("moved", city, 2)

    assert sources.run(2, sources.files("Oslo", "oslo", "moved"), sources.files("Rome", "rome", "moved")) == {}
