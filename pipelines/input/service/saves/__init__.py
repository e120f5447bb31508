"""Saves: workers write a snapshot of a dataset together.

Knows all three sides of a save: who starts it (`save`), what the dispatcher records of it (`state`, `handler`), and a
worker's part in it (`saver`). The rooms of the three import it, and it imports none of them.
"""
