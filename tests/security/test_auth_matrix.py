"""X1, on real processes: only the job's own token opens any way in."""

from __future__ import annotations

from pathlib import Path

from ftrun.lighthouse.page_routes import FILES
from tests.security.ways import all_ways, wrong_tokens


def test_every_way_in_refuses_every_token_but_the_jobs(tmp_path: Path) -> None:
    with all_ways(tmp_path) as ways:
        assert len(ways) >= 12
        for way in ways:
            assert way.ask(way.token) == way.welcome, way.name
            for kind, token in wrong_tokens(way.token).items():
                expected = way.welcome if way.is_open else way.refusal
                assert way.ask(token) == expected, (way.name, kind)
        assert [way.name for way in ways if way.is_open] == [
            f"lighthouse: {method} {path}"
            for method in ("GET", "HEAD")
            for path in sorted(("/healthz", *FILES))
        ]
