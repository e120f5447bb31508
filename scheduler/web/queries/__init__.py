"""Queries: what pages show, as records; they ask the store and know nothing of HTML requests."""
