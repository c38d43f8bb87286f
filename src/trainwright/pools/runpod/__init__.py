"""A pool of up to sixteen rented Runpod pods, built so that it can't leak money. Start with `pool.py`."""
