"""torchft's quorums: which of its replica groups train together, and its managers' answers.

Pure, like every core. It has nothing in common with ftrun's own membership (core/lighthouse/).
"""
