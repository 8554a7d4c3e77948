"""Schedules of a group that recovers without replicas (ftrun/core/replay/)."""
