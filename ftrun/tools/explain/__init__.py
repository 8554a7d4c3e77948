"""``ftrun explain``: what failed in a job, from its lighthouse while it runs, later from its logs.

Not here: what an incident is (core/books/incidents.py), its text (core/incident_words.py).
"""
