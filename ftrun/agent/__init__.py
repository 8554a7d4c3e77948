"""The agent of a node: starts, watches, restarts and stops workers, and relays their messages.

Only the spawner, a separate process, imports torch.
"""
