"""Prints how far a processor counts in a second of wall-clock time."""

import time

count = 0
end = time.perf_counter() + 1.0
while time.perf_counter() < end:
    for _ in range(2000):
        count += 1
print(count)
