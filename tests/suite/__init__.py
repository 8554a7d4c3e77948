"""How the tests are run: levels, linters beside them, tests that fail once, durations."""
