"""How the tests are run: levels, checks beside them, tests that fail once, durations."""
