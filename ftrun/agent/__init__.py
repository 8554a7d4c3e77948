"""The agent of a node: starts, watches, restarts and stops workers, and relays their messages.

Only the spawner, a process of its own, imports torch.
"""
