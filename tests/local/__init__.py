"""LocalSGD and DiLoCo in real jobs whose workers are killed at random moments."""
