"""Runs without rest: each level is called by the one before, by Python and by C code in turn."""
import sys
import threading


def level_3(count):
    total = 0
    for number in range(count):
        total += number * number
    return total


def level_2(count):
    return level_3(count) + level_3(count + 1)


def level_1(count):
    return sum(map(level_2, (count, count + 1)))


def level_0(count):
    return sorted([3, 2, 1], key=lambda number: level_1(count + number))


def spin():
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        level_0(7)


spin() if len(sys.argv) == 1 else threading.Thread(target=spin).start()
