"""``ftrun status`` on a terminal: the live screen.

Only ``run.py`` imports textual, and only when there is a picture to show. Nothing outside this
package imports it. Pure functions (header.py, rows.py, columns.py, changes.py, details.py) turn a
Status into text, and are tested as text; widgets only paint it (widgets.py). Not here: fetching the
status (status/source.py), acting on the job (the lighthouse does).
"""
