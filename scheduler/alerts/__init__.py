"""Alerts: their messages, their channels and their delivery."""
