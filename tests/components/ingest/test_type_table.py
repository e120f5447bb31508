"""The table of types on the page of sources is what really happens."""

from tests.components.ingest.type_table import PAGE, page, table


def test_the_page_says_what_becomes_of_each_type():
    """If not, write it anew: python -m tests.components.ingest.type_table"""
    text = PAGE.read_text()

    assert page(text, table()) == text
