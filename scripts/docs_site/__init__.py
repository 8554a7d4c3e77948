"""The documentation site: pages that ``scripts/docs`` adds to docs/ for mkdocs."""
