"""``ftrun report``: one HTML file about a job, from its ``events.jsonl``.

| file | what it does |
|---|---|
| story.py | reads the events of one job, and sums them up |
| drawing.py | bands, curves and bars as SVG |
| page.py | the file |
| command.py | finds the job, writes the file |

Not here: the events (lighthouse/occurrences.py), incidents in full (explain/).
"""
