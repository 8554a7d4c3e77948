"""The site of the documents: what ``scripts/docs`` gives mkdocs beside docs/ itself."""
