"""``ftrun status`` on a terminal: the live screen.

Only ``run.py`` imports textual before a picture is there to be shown, and nothing outside this room
does. What is shown is made by pure functions (header.py, rows.py, columns.py, changes.py,
details.py) of a Status, and tested as text; widgets only paint it (widgets.py). Not here:
fetching the status (status/source.py), acting on the job (the lighthouse does).
"""
