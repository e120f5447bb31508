"""Alerts: what people are told about, and how it reaches them."""
